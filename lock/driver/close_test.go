package driver_test

import (
	"context"
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

// An observer may close the Locker that calls it.
func TestCloseFromObserver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{renew: func(_ context.Context, leases []driver.Lease) []error { return forAll(leases, errNet) }}
		var l lock.Locker
		var once sync.Once
		took := make(chan time.Duration, 1)
		l = openWith(t, f, lock.Config{Observe: func(_ context.Context, ev lock.Event) {
			if ev.Kind == lock.LostLock {
				once.Do(func() {
					began := time.Now()
					_ = l.Close()
					took <- time.Since(began)
				})
			}
		}})
		<-mustTry(t, l, "k").Lost()
		if d := <-took; d > 2*time.Second {
			t.Errorf("Close took %v", d)
		}
		synctest.Wait() // there may be no time left to wait for the driver
		if n := f.called("close"); n != 1 {
			t.Errorf("the driver was closed %d times, want once", n)
		}
	})
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
