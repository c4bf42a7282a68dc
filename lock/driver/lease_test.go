package driver_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// forAll answers for all leases of a batch alike.
func forAll(leases []driver.Lease, err error) []error {
	errs := make([]error, len(leases))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// A MaxHold beyond the end of the real clock's range is no limit.
func TestGreatMaxHold(t *testing.T) {
	h := mustTry(t, open(t, &fake{}), "k", lock.MaxHold(math.MaxInt64))
	if err := h.Err(); err != nil {
		t.Error(err)
	}
}

// A Wait beyond the end of the real clock's range goes on until the key is free.
func TestGreatWait(t *testing.T) {
	l := open(t, &fake{})
	h := mustTry(t, l, "k")
	time.AfterFunc(10*time.Millisecond, func() { _ = h.Release(t.Context()) })
	if _, err := l.Acquire(t.Context(), "k", lock.Wait(math.MaxInt64)); err != nil {
		t.Error(err)
	}
}

// An observer that takes its time over the loss of other locks delays no Lost beyond
// the end of its lease.
func TestSlowObserverDelaysNoLoss(t *testing.T) {
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{renew: func(ctx context.Context, leases []driver.Lease) []error {
				<-ctx.Done()
				return forAll(leases, errNet)
			}}
			l := openWith(t, f, lock.Config{Observe: func(_ context.Context, ev lock.Event) {
				if ev.Kind == lock.LostLock {
					time.Sleep(10 * time.Millisecond)
				}
			}})
			began := time.Now()
			h := mustTry(t, l, "k")
			for i := range 40 { // these are lost a moment earlier
				mustTry(t, l, strconv.Itoa(i), lock.Margin(450*time.Millisecond))
			}
			<-h.Lost()
			if took := time.Since(began); took >= ttl {
				t.Errorf("Lost closed after %v, the lease was over after %v", took, ttl)
			}
		})
	}
}

// sharing has f grant everything on one lease, which was proved when this was called
// and not since.
func sharing(f *fake, term time.Duration) (began driver.Stamp) {
	shared := &fakeLease{f: f, term: term}
	began = driver.Now()
	f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
		f.host.Keep(shared, began)
		g := f.grant(shared)
		g.proved = began
		return g, nil
	}
	return began
}

// Who loses by the deadline is alone until the server lets go by itself: a shared lease is
// not ended before, although the server would hear of it.
func TestSharedLeaseIsNotEndedBeforeItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{renew: func(_ context.Context, leases []driver.Lease) []error { return forAll(leases, errNet) }}
		began := sharing(f, ttl)
		h := mustTry(t, open(t, f), "k")
		<-h.Lost()
		lost := driver.Now().Sub(began)
		time.Sleep(ttl - lost - time.Millisecond)
		if n := f.called("end"); n != 0 {
			t.Errorf("lost after %v, and ended before its %v were over", lost, ttl)
		}
		time.Sleep(2 * time.Millisecond)
		synctest.Wait()
		if n := f.called("end"); n != 1 {
			t.Errorf("ended %d times after its time, want once", n)
		}
	})
}

// However long after its deadline a shared lease is over, it is ended then, and nothing that
// is granted on it before counts.
func TestLongLeaseIsEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const term = 100 * ttl
		var down atomic.Bool
		down.Store(true)
		f := &fake{renew: func(_ context.Context, leases []driver.Lease) []error {
			if down.Load() {
				return forAll(leases, errNet)
			}
			return make([]error, len(leases))
		}}
		began, shared := driver.Now(), &fakeLease{f: f, term: term}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(shared)
			g.proved = began
			return g, nil
		}
		l := open(t, f)
		f.host.Keep(shared, began)
		<-mustTry(t, l, "k").Lost()
		down.Store(false)
		for driver.Now().Sub(began) < term-time.Millisecond {
			if _, err := l.TryAcquire(t.Context(), "other"); !errors.Is(err, lock.ErrUnavailable) {
				t.Fatalf("%v after its proof, TryAcquire: %v, want ErrUnavailable", driver.Now().Sub(began), err)
			}
			time.Sleep(ttl / 10)
		}
		time.Sleep(ttl / 10)
		if n := f.called("end"); n != 1 {
			t.Errorf("ended %d times after its time, want once", n)
		}
	})
}

// A lease of which the corrections leave nothing is over when it is proved.
func TestTermOfNothing(t *testing.T) {
	for _, term := range []time.Duration{time.Nanosecond, 0, -time.Nanosecond, -time.Hour, math.MinInt64} {
		for name, grant := range map[string]func(*fake){
			"of its own": func(f *fake) {
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					return f.grant(&fakeLease{f: f, term: term}), nil
				}
			},
			"shared": func(f *fake) { sharing(f, term) },
		} {
			t.Run(name+" "+term.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := &fake{}
					grant(f)
					l := open(t, f)
					if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrInvalid) {
						t.Errorf("TryAcquire: %v, want ErrUnavailable", err)
					}
					time.Sleep(ttl)
				})
			})
		}
	}
}

// A renewal for the sake of a new grant revives no lock on the same lease whose Margin
// has begun.
func TestRenewalRevivesNoMargin(t *testing.T) {
	for range 30 {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			began := sharing(f, 10*time.Second)
			var loss atomic.Int64 // a Stamp
			untilLoss := func() time.Duration { return driver.Stamp(loss.Load()).Sub(driver.Now()) }
			f.renew = func(_ context.Context, leases []driver.Lease) []error {
				left := untilLoss()
				if left > 900*time.Millisecond {
					return forAll(leases, errNet)
				}
				time.Sleep(left) // answered at that very moment
				return make([]error, len(leases))
			}
			l := openWith(t, f, lock.Config{TTL: 10 * time.Second})
			h := mustTry(t, l, "a", lock.Margin(4*time.Second))
			loss.Store(int64(began.Add(h.Valid())))
			time.Sleep(untilLoss() - 850*time.Millisecond)
			_, _ = l.TryAcquire(t.Context(), "b")
			time.Sleep(untilLoss())
			if err := h.Err(); !errors.Is(err, lock.ErrLost) {
				t.Errorf("Err %v after the Margin began, want ErrLost", err)
			}
		})
	}
}

// However great its Margin and however old the lease it joins, a lock is returned with
// time left to work under it.
func TestLockIsReturnedWithTimeLeft(t *testing.T) {
	for age := 3 * time.Second; age < 5*time.Second; age += 20 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{}
			sharing(f, 10*time.Second)
			f.renew = func(ctx context.Context, leases []driver.Lease) []error {
				select {
				case <-time.After(1600 * time.Millisecond): // just in time
				case <-ctx.Done():
				}
				return make([]error, len(leases))
			}
			l := openWith(t, f, lock.Config{TTL: 10 * time.Second})
			mustTry(t, l, "a")
			time.Sleep(age)
			h, err := l.TryAcquire(t.Context(), "b", lock.Margin(4900*time.Millisecond))
			if err != nil {
				return // refused is fine
			}
			if v := h.Valid(); v < time.Second {
				t.Errorf("Valid() = %v on a lease that was %v old", v, age)
			}
		})
	}
}

// Acquisitions that find their shared lease old renew it once for all of them.
func TestAcquisitionsShareRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		began := sharing(f, ttl)
		var renewals gauge
		f.renew = func(ctx context.Context, leases []driver.Lease) []error {
			defer renewals.enter()()
			if driver.Now().Sub(began) < 5*time.Second {
				<-ctx.Done()
				return forAll(leases, ctx.Err())
			}
			time.Sleep(100 * time.Millisecond)
			return make([]error, len(leases))
		}
		l := open(t, f)
		mustTry(t, l, "k")
		time.Sleep(5 * time.Second)
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				if _, err := l.TryAcquire(t.Context(), strconv.Itoa(i)); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := renewals.most(); n > 4 {
			t.Errorf("one lease was renewed %d times at once", n)
		}
	})
}

// Who gives up waiting for a renewal that others wait for, too, does not end it for them.
func TestRenewalOutlivesWhoAskedForIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		began := sharing(f, ttl)
		f.renew = func(ctx context.Context, leases []driver.Lease) []error {
			if driver.Now().Sub(began) < 5*time.Second {
				return forAll(leases, errNet)
			}
			select {
			case <-time.After(500 * time.Millisecond):
				return make([]error, len(leases))
			case <-ctx.Done():
				return forAll(leases, ctx.Err())
			}
		}
		l := open(t, f)
		mustTry(t, l, "k")
		time.Sleep(5 * time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := l.TryAcquire(ctx, "first"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("the first: %v, want DeadlineExceeded", err)
			}
		})
		synctest.Wait()
		for i := range 5 {
			wg.Go(func() {
				if _, err := l.TryAcquire(t.Context(), strconv.Itoa(i)); err != nil {
					t.Errorf("another: %v", err)
				}
			})
		}
		wg.Wait()
	})
}

// The cause of a loss says what the last renewal has failed with.
func TestLossNamesTheLastFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{renew: func(_ context.Context, leases []driver.Lease) []error { return []error{errNet} }}
		h := mustTry(t, open(t, f), "k")
		<-h.Lost()
		if err := h.Err(); !errors.Is(err, lock.ErrLost) || !strings.Contains(err.Error(), errNet.Error()) {
			t.Errorf("Err: %v, want ErrLost with %q", err, errNet)
		}
	})
}

// However long the server keeps a lease, it is looked at every third of the TTL, and soon
// again after a look that failed.
func TestPaceOfALongLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.lease.term = lock.MaxTTL
			return g, nil
		}
		var answer atomic.Value
		says := func(err error) { answer.Store([]error{err}) }
		f.renew = func(context.Context, []driver.Lease) []error { return answer.Load().([]error) }
		l := open(t, f)
		h := mustTry(t, l, "k")
		for _, err := range []error{nil, errNet, nil} {
			says(err)
			before := f.called("renew")
			time.Sleep(10 * ttl)
			if n := f.called("renew") - before; n < 25 {
				t.Errorf("renewals answer %v: looked at %d times in 10 TTLs, want about 30 at least", err, n)
			}
		}
		if err := h.Err(); err != nil {
			t.Errorf("Err: %v", err)
		}
		says(lock.ErrLost)
		time.Sleep(ttl)
		if !isLost(h) {
			t.Error("a loss was not noticed within a TTL")
		}
	})
}
