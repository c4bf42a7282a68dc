package etcdlock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// Many take a few locks from each other, exclusive and shared, over connections that break: no
// two hold one that must not, tokens grow, and nothing is left.
func TestBadNetwork(t *testing.T) {
	const lockers, workers, keys, lasts = 4, 24, 4, 10 * time.Second
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	var all []lock.Locker
	var proxies []*conformance.Proxy
	for range lockers {
		p := newProxy(t, s.Addr())
		proxies = append(proxies, p)
		all = append(all, openURL(t, "etcd://"+p.Addr()+"?ttl=3s"))
	}
	var books [keys]book
	end := time.Now().Add(lasts)
	var running sync.WaitGroup
	granted := make([]int, workers)
	for i := range workers {
		running.Go(func() {
			for time.Now().Before(end) {
				k := rand.N(keys)
				opts := []lock.Option{lock.Wait(rand.N(500 * time.Millisecond))}
				if rand.N(3) == 0 {
					opts = append(opts, lock.Shared())
				}
				h, err := all[i%lockers].Acquire(t.Context(), fmt.Sprint("bad-", k), opts...)
				if err != nil {
					continue
				}
				granted[i]++
				books[k].enter(t, h, len(opts) > 1)
				time.Sleep(rand.N(3 * time.Millisecond))
				books[k].leave(h)
				ctx, cancel := context.WithTimeout(context.Background(), rand.N(100*time.Millisecond))
				_ = h.Release(ctx)
				cancel()
			}
		})
	}
	for time.Now().Before(end) {
		p := proxies[rand.N(lockers)]
		switch rand.N(4) {
		case 0:
			p.Cut()
		case 1:
			p.LoseReply()
		case 2:
			p.LoseRequest()
		case 3:
			p.Stall()
			time.Sleep(rand.N(300 * time.Millisecond))
			p.Heal()
		}
		time.Sleep(rand.N(100 * time.Millisecond))
	}
	for _, p := range proxies {
		p.Heal()
	}
	running.Wait()
	total := 0
	for _, n := range granted {
		total += n
	}
	t.Logf("%d locks granted", total)
	if total < 100 {
		t.Errorf("%d locks were granted, which proves little", total)
	}
	until(t, func() bool { return len(names(t, direct, "/holdfast/{b")) == 0 })
	for _, l := range all {
		for k := range keys {
			release(t, must(t)(l.Acquire(t.Context(), fmt.Sprint("bad-", k), lock.Wait(10*time.Second))))
		}
	}
}

// book is who believes to hold a lock.
type book struct {
	mu     sync.Mutex
	inside map[lock.Handle]bool // and whether it is shared
	last   lock.Token           // of an exclusive one
}

func (b *book) enter(t *testing.T, h lock.Handle, isShared bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inside == nil {
		b.inside = make(map[lock.Handle]bool)
	}
	token, _ := h.Token()
	if !isShared {
		if token <= b.last {
			t.Errorf("%s: the token %d came after %d", h.Key(), token, b.last)
		}
		b.last = token
	}
	for other, otherShared := range b.inside {
		// Asked in this order: what is still good now was good when this one came.
		if !(isShared && otherShared) && h.Err() == nil && other.Err() == nil {
			theirs, _ := other.Token()
			t.Errorf("%s is held with the tokens %d and %d at once", h.Key(), token, theirs)
		}
	}
	b.inside[h] = isShared
}

func (b *book) leave(h lock.Handle) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.inside, h)
}
