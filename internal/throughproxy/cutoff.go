package throughproxy

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/lock"
)

// CutOffHolders cuts off two hundred holders, forty at a time, while another waits
// for each: Lost must close before the other is let in, every time.
func CutOffHolders(t *testing.T, h *conformance.Harness) {
	const together, rounds = 40, 5
	waiter := h.Open(t)
	t.Cleanup(func() { waiter.Close() })
	var mu sync.Mutex
	least := time.Hour
	for round := range rounds {
		var wg sync.WaitGroup
		for i := range together {
			holder := h.Open(t)
			key := fmt.Sprintf("cut-%d-%d", round, i)
			held, err := holder.Acquire(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			wg.Go(func() {
				defer holder.Close()
				heal := h.Isolate(t, holder)
				defer heal()
				alone, err := cutOff(t.Context(), held, waiter, key, 5*h.TTL)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				least = min(least, alone)
				mu.Unlock()
			})
		}
		wg.Wait()
	}
	t.Logf("%d holders cut off: Lost closed at least %v before the next was let in, with a TTL of %v", together*rounds, least, h.TTL)
}

// cutOff waits for the key of a holder that is cut off, at most for so long, and returns how long before
// that the holder was told.
func cutOff(ctx context.Context, held lock.Handle, waiter lock.Locker, key string, most time.Duration) (time.Duration, error) {
	told := make(chan time.Time, 1)
	go func() { <-held.Lost(); told <- time.Now() }()
	next, err := waiter.Acquire(ctx, key, lock.Wait(most))
	let := time.Now()
	if err != nil {
		return 0, err
	}
	select {
	case <-held.Lost():
	default:
		err = fmt.Errorf("%s: another was let in while Lost was open", key)
	}
	alone := let.Sub(<-told)
	if releaseErr := next.Release(ctx); err == nil {
		err = releaseErr
	}
	return alone, err
}
