package driver_test

import (
	"context"
	"errors"
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

// abandoned is the set of keys whose requests were abandoned.
type abandoned struct {
	mu   sync.Mutex
	keys map[string]bool
}

func (a *abandoned) note(_ context.Context, r *driver.Request) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.keys == nil {
		a.keys = make(map[string]bool)
	}
	a.keys[r.Key] = true
	return nil
}

func (a *abandoned) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.keys)
}

// againUntil is an ErrAgain that ends a context when it is looked at for the n-th time.
type againUntil struct {
	n      atomic.Int32
	cancel func()
}

func (a *againUntil) Error() string { return driver.ErrAgain.Error() }

func (a *againUntil) Is(target error) bool {
	if a.n.Add(-1) == 0 {
		a.cancel()
	}
	return target == driver.ErrAgain
}

// A wait that ends between two slices has a place in the server's queue, which is
// abandoned, whatever the moment.
func TestWaitEndsBetweenSlices(t *testing.T) {
	for looks := range 12 {
		t.Run(strconv.Itoa(looks), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				again := &againUntil{cancel: cancel}
				again.n.Store(int32(looks + 1))
				f := &fake{acquire: func(context.Context, *driver.Request) (driver.Grant, error) { return nil, again }}
				if _, err := open(t, f).Acquire(ctx, "k"); !errors.Is(err, context.Canceled) {
					t.Errorf("Acquire: %v, want Canceled", err)
				}
				time.Sleep(ttl)
				if f.called("abandon") == 0 {
					t.Error("the place in the queue was not abandoned")
				}
			})
		})
	}
}

// A wait may end at the same moment as one of its slices.
func TestWaitEndsWithSlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waits = 300
		var got abandoned
		f := &fake{abandon: got.note}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			time.Sleep(500 * time.Millisecond)
			return nil, driver.ErrAgain
		}
		l := open(t, f)
		for i := range waits {
			go func() { _, _ = l.Acquire(t.Context(), strconv.Itoa(i), lock.Wait(time.Second)) }()
		}
		time.Sleep(5 * ttl)
		if n := got.count(); n != waits {
			t.Errorf("%d waits were abandoned, want %d", n, waits)
		}
	})
}

// A wait that is cancelled while slices follow upon each other is abandoned.
func TestWaitIsCancelledAmidSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waits = 500
		var got abandoned
		f := &fake{abandon: got.note}
		l := open(t, f)
		for i := range waits {
			ctx, cancel := context.WithCancel(t.Context())
			slices := 0
			f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
				if slices++; slices == 20 {
					go cancel()
				}
				return nil, driver.ErrAgain
			}
			_, _ = l.Acquire(ctx, strconv.Itoa(i))
			synctest.Wait()
		}
		if n := got.count(); n != waits {
			t.Errorf("%d waits were abandoned, want %d", n, waits)
		}
	})
}

// A release that never returns may have left its lock on a shared lease, which is
// ended then, and others get the key.
func TestHangingReleaseEndsSharedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		forever := make(blocked)
		defer close(forever)
		shared := &fakeLease{f: f, term: ttl}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			if f.called("acquire") > 1 {
				return f.grant(nil), nil
			}
			f.host.Keep(shared, driver.Now())
			g := f.grant(shared)
			g.release = func(context.Context) error { forever.wait(); return nil }
			return g, nil
		}
		l := open(t, f)
		if err := mustTry(t, l, "k").Release(t.Context()); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Release: %v, want ErrUnavailable", err)
		}
		time.Sleep(4 * ttl)
		if f.called("end") != 1 {
			t.Errorf("End called %d times, want once", f.called("end"))
		}
		mustTry(t, l, "k")
	})
}

// Calls that never return, however many, keep nothing else from being settled.
func TestHangingAbandonsHoldUpNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		forever := make(blocked)
		defer close(forever)
		shared := &fakeLease{f: f, term: ttl}
		f.acquire = func(_ context.Context, r *driver.Request) (driver.Grant, error) {
			if r.Key != "k" {
				return nil, errNet
			}
			f.host.Keep(shared, driver.Now())
			return f.grant(shared), nil
		}
		f.abandon = func(context.Context, *driver.Request) error { forever.wait(); return nil }
		l := open(t, f)
		for i := range 100 {
			_, _ = l.TryAcquire(t.Context(), strconv.Itoa(i))
		}
		h := mustTry(t, l, "k")
		f.host.LeaseLost(shared, errNet)
		if !isLost(h) {
			t.Error("not lost with its lease")
		}
		time.Sleep(ttl)
		if f.called("end") != 1 {
			t.Errorf("End of the lost lease called %d times, want once", f.called("end"))
		}
		shared = &fakeLease{f: f, term: ttl}
		mustTry(t, l, "k")
	})
}

// What has no place to be tried within two TTLs is given up with the rest, and not tried
// all at once then.
func TestBacklogIsGivenUpInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const first, places = ttl / 2, 16
		f := &fake{acquire: func(context.Context, *driver.Request) (driver.Grant, error) { return nil, errNet }}
		began := time.Now()
		var tries gauge
		f.abandon = func(ctx context.Context, _ *driver.Request) error {
			if age := time.Since(began); age > first { // those before have places of their own
				defer tries.enter()()
				if age > 2*ttl {
					t.Errorf("tried after %v", age)
				}
			}
			<-ctx.Done()
			return ctx.Err()
		}
		l := open(t, f)
		for i := range 300 {
			_, _ = l.TryAcquire(t.Context(), strconv.Itoa(i))
		}
		time.Sleep(4 * ttl)
		if most := tries.most(); most > places {
			t.Errorf("%d tries at once, want at most %d", most, places)
		}
	})
}

// A renewal that does not return holds a release up for seconds, not for as long as
// the lease lasts.
func TestReleaseDespiteHangingRenewal(t *testing.T) {
	for name, ignores := range map[string]bool{"ends with its context": false, "ignores its context": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const day = 24 * time.Hour
				f := &fake{}
				forever := make(blocked)
				defer close(forever)
				var sent time.Time
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					g := f.grant(&fakeLease{f: f, term: day})
					g.release = func(context.Context) error { sent = time.Now(); return nil }
					return g, nil
				}
				renewing := make(chan bool, 1)
				f.renew = func(ctx context.Context, leases []driver.Lease) []error {
					renewing <- true
					if ignores {
						forever.wait()
					}
					<-ctx.Done()
					return forAll(leases, ctx.Err())
				}
				h := mustTry(t, openWith(t, f, lock.Config{TTL: day}), "k")
				<-renewing
				began := time.Now()
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if took := sent.Sub(began); took < 0 || took > 10*time.Second {
					t.Errorf("the release was sent after %v", took)
				}
			})
		})
	}
}

// A release that finds nothing is a loss, unless one before it may have done it: one
// that was never sent has not.
func TestReleaseThatFindsNothing(t *testing.T) {
	for name, c := range map[string]struct{ first, want error }{
		"after one of unknown outcome": {errNet, nil},
		"after one that was not sent":  {driver.Refused(errNet), lock.ErrLost},
		"at once":                      {lock.ErrLost, lock.ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					g := f.grant(nil)
					g.release = func(context.Context) error {
						if f.called("release") == 1 {
							return c.first
						}
						return lock.ErrLost
					}
					return g, nil
				}
				h := mustTry(t, open(t, f), "k")
				if err := h.Release(t.Context()); !errors.Is(err, c.want) {
					t.Errorf("Release: %v, want %v", err, c.want)
				}
			})
		})
	}
}

// Where a shared lease has to be ended because of another key, its holders are left
// their Margin to wind down.
func TestGhostLeavesMargin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const margin = ttl / 3
		f := &fake{}
		ended := make(chan time.Time, 1)
		shared := &fakeLease{f: f, term: ttl, end: func(context.Context) error { ended <- time.Now(); return nil }}
		f.acquire = func(_ context.Context, r *driver.Request) (driver.Grant, error) {
			if r.Key == "doubtful" {
				return nil, errNet
			}
			f.host.Keep(shared, driver.Now())
			return f.grant(shared), nil
		}
		f.abandon = func(context.Context, *driver.Request) error { return errNet }
		l := open(t, f)
		h := mustTry(t, l, "k", lock.Margin(margin))
		_, _ = l.TryAcquire(t.Context(), "doubtful")
		<-h.Lost()
		lost := time.Now()
		if left := (<-ended).Sub(lost); left < margin {
			t.Errorf("End called %v after Lost, the Margin is %v", left, margin)
		}
	})
}

// A release that the server refused until the lease had run out is no loss: the holder
// had the lock until it released it.
func TestRefusedReleaseOutlivesItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(&fakeLease{f: f, term: time.Second})
			began := time.Now()
			g.release = func(context.Context) error {
				if time.Since(began) < time.Second {
					return driver.Refused(errNet)
				}
				return lock.ErrLost
			}
			return g, nil
		}
		h := mustTry(t, open(t, f), "k")
		if err := h.Release(t.Context()); err != nil {
			t.Errorf("Release: %v, want nil", err)
		}
	})
}

// That a try to release took too long is not told as the end of the caller's context.
func TestReleaseThatTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.release = func(context.Context) error { return context.DeadlineExceeded }
			return g, nil
		}
		h := mustTry(t, openWith(t, f, lock.Config{TTL: time.Second}), "k")
		err := h.Release(t.Context())
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Release: %v, want ErrUnavailable alone", err)
		}
	})
}

// Who does not wait any more for a release is told why it has not succeeded so far.
func TestReleaseTellsTheLastFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.release = func(context.Context) error { return driver.Refused(errNet) }
			return g, nil
		}
		h := mustTry(t, open(t, f), "k")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for _, ctx := range []context.Context{ctx, t.Context()} {
			err := h.Release(ctx)
			if !errors.Is(err, lock.ErrUnavailable) || ctx.Err() != nil && !errors.Is(err, ctx.Err()) || !strings.Contains(err.Error(), errNet.Error()) {
				t.Errorf("Release: %v, want ErrUnavailable, the end of the context if it ended, and what the server said", err)
			}
		}
	})
}
