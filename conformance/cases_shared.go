package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// needsShared runs the case only where shared mode is promised. Elsewhere the option
// must be refused, which the first case proves.
func needsShared(run func(*check)) func(*check) {
	return func(k *check) {
		if k.h.Promises&lock.SharedMode == 0 {
			k.Skip("skipped: the backend does not promise shared mode")
		}
		run(k)
	}
}

var sharedCases = []Case{
	{"SharedIsRefusedWhereMissing", "an ability that the backend has not wraps errors.ErrUnsupported, and nothing is held", nil, func(k *check) {
		if k.h.Promises&lock.SharedMode != 0 {
			k.Skip("skipped: the backend has shared mode")
		}
		l := k.open()
		if _, err := k.try(l, k.key, lock.Shared()); !errors.Is(err, errors.ErrUnsupported) {
			k.broken("TryAcquire with Shared: error %v, want one that matches errors.ErrUnsupported", err)
		}
		k.release(k.free(l, k.key))
	}},
	{"SharedHoldTogether", "shared holders hold together, against every exclusive one", nil, needsShared(func(k *check) {
		a, b := k.open(), k.open()
		r1 := k.acquire(a, k.key, lock.Shared())
		r2 := k.free(a, k.key, lock.Shared())
		r3 := k.free(b, k.key, lock.Shared())
		k.taken(a, k.key)
		k.taken(b, k.key)
		k.pause(k.ttl * 3 / 2)
		for _, h := range []lock.Handle{r1, r2, r3} {
			k.held(h)
			k.taken(b, k.key)
			k.release(h)
		}
		w := k.free(a, k.key)
		k.taken(a, k.key, lock.Shared())
		k.taken(b, k.key, lock.Shared())
		k.release(w)
		k.release(k.free(b, k.key, lock.Shared()))
	})},
	{"SharedReleaseIsOwn", "the release of one shared holder leaves the others alone", nil, needsShared(func(k *check) {
		a, b := k.open(), k.open()
		r1 := k.acquire(a, k.key, lock.Shared())
		r2 := k.acquire(a, k.key, lock.Shared())
		k.release(r1)
		k.release(r1)
		k.during(k.ttl*3/2, func() {
			k.held(r2)
			k.taken(b, k.key)
		})
		k.release(r2)
		k.release(k.free(b, k.key))
	})},
	{"SharedTokensGrow", "tokens grow in any mode, also between shared holders", nil, needsShared(func(k *check) {
		a, b := k.open(), k.open()
		var last lock.Token
		for i := range 4 {
			r1 := k.take(a, k.key, k.ttl+k.slack, lock.Shared())
			last = k.greater(r1, last)
			r2 := k.take(b, k.key, k.ttl+k.slack, lock.Shared())
			last = k.greater(r2, last)
			k.release(r1)
			k.release(r2)
			w := k.take([]lock.Locker{a, b}[i%2], k.key, k.ttl+k.slack)
			last = k.greater(w, last)
			k.release(w)
		}
	})},
	{"ReadersDoNotStarveWriters", "a writer gets its turn however many readers come and go", nil, needsShared(func(k *check) {
		readers, writer := []lock.Locker{k.open(), k.open()}, k.open()
		ctx, stop := context.WithCancel(k.ctx)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				for ctx.Err() == nil {
					h, err := readers[i%2].Acquire(ctx, k.key, lock.Shared())
					if err != nil {
						return
					}
					k.pause(k.ttl / 40 * time.Duration(i+2)) // they overlap: the key is never free
					_ = h.Release(k.ctx)
				}
			})
		}
		k.pause(k.ttl / 10)
		_, err := k.tryAcquireWith(k.ctx, writer, k.key, true, lock.Wait(5*k.ttl+k.slack))
		stop()
		wg.Wait()
		if err != nil {
			k.broken("Acquire by a writer among readers: %v", err)
		}
	})},
	{"SharedLoss", "a shared holder that is cut off is told as any other", []fault{isolate}, needsShared(func(k *check) {
		a, b := k.open(), k.open()
		r1 := k.acquire(a, k.key, lock.Shared())
		r2 := k.acquire(b, k.key, lock.Shared())
		heal := k.h.Isolate(k.T, a)
		defer heal()
		k.awaitLoss(r1, k.ttl+k.slack)
		k.lost(r1, nil)
		k.held(r2)
		k.release(r2)
		k.release(k.take(b, k.key, 2*k.ttl+k.slack))
	})},
}

var fifoCases = []Case{
	{"FIFO", "waiters of several Lockers are served in the order in which they came", nil, func(k *check) {
		if k.h.Promises&lock.FIFO == 0 {
			k.Skip("skipped: the backend does not promise FIFO")
		}
		const n = 6
		first := k.open()
		for range 3 {
			h := k.acquire(first, k.key)
			var waiting []<-chan acquired
			for i := range n {
				waiting = append(waiting, k.background(k.ctx, k.open(), k.key))
				k.awaitWaiters(first, i+1)
			}
			k.release(h)
			for i, w := range waiting {
				got := k.await(w, k.longest())
				if got.err != nil {
					k.broken("waiter %d: %v", i, got.err)
				}
				for j, later := range waiting[i+1:] {
					if len(later) > 0 {
						k.broken("waiter %d was served while waiter %d held the key", i+1+j, i)
					}
				}
				k.release(got.h)
			}
		}
	}},
}

// awaitWaiters waits until n waiters queue at the server.
func (k *check) awaitWaiters(l lock.Locker, n int) {
	k.Helper()
	for end := time.Now().Add(k.ttl + k.slack); ; k.pause(k.ttl / 200) {
		info, err := l.Inspect(k.ctx, k.key)
		if err != nil {
			k.broken("Inspect: %v", err)
		}
		if info.Waiters >= n {
			return
		}
		if time.Now().After(end) {
			k.broken("Inspect shows %d waiters, want %d", info.Waiters, n)
		}
	}
}
