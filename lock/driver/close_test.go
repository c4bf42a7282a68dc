package driver_test

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// gauge counts how many calls are under way at once.
type gauge struct {
	mu        sync.Mutex
	now, peak int
}

func (g *gauge) enter() (leave func()) {
	g.add(1)
	return func() { g.add(-1) }
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now += n
	g.peak = max(g.peak, g.now)
}

func (g *gauge) most() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.peak
}

// An observer may close the Locker that calls it, at every event: of the keeper's, of
// Close's own, and of what Close gives up.
func TestCloseFromObserver(t *testing.T) {
	never := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, c := range map[string]struct {
		renewed error
		release func(context.Context) error
		begin   func(lock.Locker)
	}{
		"the keeper's":        {errNet, nil, func(lock.Locker) {}},
		"Close's":             {nil, nil, func(l lock.Locker) { _ = l.Close() }},
		"of what is given up": {nil, never, func(l lock.Locker) { _ = l.Close() }},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{renew: func(_ context.Context, leases []driver.Lease) []error { return forAll(leases, c.renewed) }}
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					g := f.grant(nil)
					g.release = c.release
					return g, nil
				}
				var l lock.Locker
				var closes sync.WaitGroup
				l = openWith(t, f, lock.Config{Observe: func(_ context.Context, ev lock.Event) {
					if ev.Kind != lock.LostLock && ev.Kind != lock.Released {
						return
					}
					closes.Add(1)
					defer closes.Done()
					mustClose(t, l)
				}})
				for _, key := range []string{"a", "b", "c"} {
					mustTry(t, l, key)
				}
				c.begin(l)
				time.Sleep(2 * ttl)
				closes.Wait()
				if n := f.called("close"); n != 1 {
					t.Errorf("the driver was closed %d times, want once", n)
				}
			})
		})
	}
}

// mustClose closes l in time.
func mustClose(t *testing.T, l lock.Locker) {
	t.Helper()
	began := time.Now()
	_ = l.Close()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Close took %v", took)
	}
}

// What Close does to those who hold is told before it returns, and in order, unless the
// observer blocks.
func TestCloseIsTold(t *testing.T) {
	for name, blocks := range map[string]bool{"in time": false, "to one that blocks": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				forever := make(blocked)
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					g := f.grant(nil)
					g.release = func(context.Context) error { forever.wait(); return nil } // and is given up
					return g, nil
				}
				var mu sync.Mutex
				var told []lock.EventKind
				l := openWith(t, f, lock.Config{Observe: func(_ context.Context, ev lock.Event) {
					if blocks && ev.Kind == lock.LostLock {
						forever.wait()
					}
					mu.Lock()
					defer mu.Unlock()
					told = append(told, ev.Kind)
				}})
				mustTry(t, l, "k")
				mustClose(t, l)
				mu.Lock()
				if want := []lock.EventKind{lock.Acquired, lock.LostLock, lock.Released}; !blocks && !slices.Equal(told, want) {
					t.Errorf("told of %v before Close returned, want %v", told, want)
				}
				mu.Unlock()
				close(forever)
			})
		})
	}
}

// Close releases what is held without a storm of requests.
func TestCloseReleasesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 2000
		f := &fake{}
		var releases gauge
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.release = func(context.Context) error {
				defer releases.enter()()
				time.Sleep(time.Millisecond)
				return nil
			}
			return g, nil
		}
		l := open(t, f)
		for i := range n {
			mustTry(t, l, strconv.Itoa(i))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if most := releases.most(); most > 64 || f.called("release") != n {
			t.Errorf("%d releases at once, %d in all; want at most 64 and %d", most, f.called("release"), n)
		}
	})
}
