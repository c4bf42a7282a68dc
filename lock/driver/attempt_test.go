package driver_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// An attempt that was left behind is abandoned before the next one for its key is
// sent: a server that knows only sessions would let that in beside it.
func TestNoAttemptBesideOneLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		forever := make(blocked)
		defer close(forever)
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				forever.wait()
			}
			if f.called("abandon") == 0 {
				t.Error("sent while the one before it was under way")
			}
			return f.grant(nil), nil
		}
		l := open(t, f)
		if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryAcquire: %v, want ErrUnavailable", err)
		}
		mustTry(t, l, "k")
	})
}

// An attempt of unknown outcome is settled before the next one for its key is sent.
func TestNoAttemptBesideUnsettledOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var settled atomic.Bool
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				return nil, errNet
			}
			if !settled.Load() {
				t.Error("sent while the one before it was unsettled")
			}
			return f.grant(nil), nil
		}
		f.abandon = func(context.Context, *driver.Request) error {
			time.Sleep(time.Second)
			settled.Store(true)
			return nil
		}
		l := open(t, f)
		if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, errNet) {
			t.Errorf("TryAcquire: %v, want its cause", err)
		}
		mustTry(t, l, "k")
	})
}

// What an earlier try of this Locker left behind is not told as a key that is held.
func TestOwnGhostIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var holds atomic.Bool // at the server
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			switch {
			case holds.Swap(true):
				return nil, lock.ErrHeld
			case f.called("acquire") == 1:
				return nil, errNet // in place of the answer
			}
			return f.grant(nil), nil
		}
		f.abandon = func(context.Context, *driver.Request) error {
			time.Sleep(100 * time.Millisecond)
			holds.Store(false)
			return nil
		}
		l := open(t, f)
		if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, errNet) {
			t.Errorf("TryAcquire: %v, want its cause", err)
		}
		mustTry(t, l, "k")
	})
}

// Nor is what a wait has left behind itself: a grant that it could not use, or a place in
// the server's queue.
func TestOwnGhostOfAWaitIsNotHeld(t *testing.T) {
	for name, first := range map[string]func(*fake, *driver.Request) (driver.Grant, error){
		"a grant that is worth nothing": func(f *fake, r *driver.Request) (driver.Grant, error) {
			f.host.GrantLost(r.ID, errNet)
			return f.grant(nil), nil
		},
		"a place, and a refusal": func(f *fake, _ *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				return nil, driver.ErrAgain
			}
			return nil, driver.Refused(errNet)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				var ghost string // the ID of what is left at the server
				settle := func(context.Context) error {
					time.Sleep(time.Second)
					ghost = ""
					return nil
				}
				f.acquire = func(_ context.Context, r *driver.Request) (driver.Grant, error) {
					switch {
					case ghost == "" && f.called("acquire") > 2:
						return f.grant(nil), nil
					case ghost != "" && ghost != r.ID:
						t.Error("sent beside what the last request left")
						return nil, lock.ErrHeld
					}
					ghost = r.ID
					g, err := first(f, r)
					if g, ok := g.(*fakeGrant); ok {
						g.release = settle
					}
					return g, err
				}
				f.abandon = func(ctx context.Context, _ *driver.Request) error { return settle(ctx) }
				l := openWith(t, f, lock.Config{Observe: func(_ context.Context, ev lock.Event) {
					if ev.Kind == lock.Contended {
						t.Error("told that the key is taken")
					}
				}})
				if _, err := l.Acquire(t.Context(), "k", lock.Wait(ttl)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// An error of a context matches that context's own, also when the cause is the error
// of another call, as it is with an errgroup.
func TestContextWithCauseOfAnotherCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(ctx context.Context, r *driver.Request) (driver.Grant, error) {
			if r.Key == "mute" {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, lock.ErrHeld
		}
		l := open(t, f)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { _, err := l.TryAcquire(ctx, "mute"); cancel(err) }()
		if _, err := l.Acquire(ctx, "k"); !errors.Is(err, context.Canceled) || !errors.Is(err, lock.ErrHeld) {
			t.Errorf("Acquire: %v, want Canceled and what was seen of the key", err)
		}
	})
}

// That a key was taken once is not told any more when the server cannot be reached.
func TestTakenIsForgottenWhenUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				return nil, lock.ErrHeld
			}
			return nil, driver.Refused(errNet)
		}
		l := open(t, f)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _, _ = l.Acquire(ctx, "k") }()
		time.Sleep(time.Minute)
		if _, err := l.TryAcquire(t.Context(), "k"); errors.Is(err, lock.ErrHeld) || !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryAcquire: %v, want ErrUnavailable", err)
		}
	})
}

// A caller's own deadline may be later than the limit of calls without one.
func TestCallersDeadlineHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(ctx context.Context, _ *driver.Request) (driver.Grant, error) {
			select {
			case <-time.After(20 * time.Second):
				return f.grant(nil), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		l := openWith(t, f, lock.Config{TTL: time.Minute})
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if _, err := l.TryAcquire(ctx, "k"); err != nil {
			t.Error(err)
		}
	})
}

// Acquire does not match ErrLost: who was never given a lock has lost none.
func TestNothingIsLostBeforeItIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			time.Sleep(ttl * 2 / 3) // so old a grant is renewed first
			return g, nil
		}
		f.renew = func(_ context.Context, leases []driver.Lease) []error { return forAll(leases, lock.ErrLost) }
		_, err := open(t, f).TryAcquire(t.Context(), "k")
		if errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryAcquire: %v, want ErrUnavailable", err)
		}
	})
}

// The TokenBase is added to tokens, and not to where there is none.
func TestInspectWithoutToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{inspect: func(context.Context, string) (lock.Info, error) {
			return lock.Info{Holders: []lock.Holder{{Owner: "x"}}}, nil
		}}
		info, err := openWith(t, f, lock.Config{TokenBase: 1000}).Inspect(t.Context(), "k")
		if err != nil || info.Holders[0].Token != 0 {
			t.Errorf("Inspect = %+v, %v; want an unknown token", info, err)
		}
	})
}

// The limit of a call whose context has no deadline is not told as a deadline of it.
func TestInspectOfMuteServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{inspect: func(ctx context.Context, _ string) (lock.Info, error) {
			<-ctx.Done()
			return lock.Info{}, ctx.Err()
		}}
		_, err := open(t, f).Inspect(t.Context(), "k")
		if errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Inspect: %v, want ErrUnavailable", err)
		}
	})
}

// stepped is a context whose deadline is over by the wall clock, which was set forward,
// and not by its timer.
type stepped struct{ context.Context }

func (stepped) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

// A wall clock that is set forward holds up no answer.
func TestSteppedClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{inspect: func(context.Context, string) (lock.Info, error) { return lock.Info{}, errNet }}
		l := open(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		began := time.Now()
		if _, err := l.Inspect(stepped{ctx}, "k"); err == nil {
			t.Error("no error")
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("Inspect took %v", took)
		}
	})
}

// A key that was taken, at a server that has been mute since, is not known to be taken.
func TestTakenThenMute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(ctx context.Context, _ *driver.Request) (driver.Grant, error) {
			if f.called("acquire") < 5 {
				return nil, lock.ErrHeld
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		_, err := open(t, f).Acquire(t.Context(), "k", lock.Wait(3*time.Second))
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrHeld) {
			t.Errorf("Acquire: %v, want ErrUnavailable alone", err)
		}
	})
}

// The next slice of a wait has no answer before its end: a key that the last one found
// taken is taken.
func TestTakenInTheLastSlice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(ctx context.Context, r *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				r.Busy()
			}
			select {
			case <-time.After(500 * time.Millisecond):
				return nil, driver.ErrAgain
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		_, err := open(t, f).Acquire(t.Context(), "k", lock.Wait(1900*time.Millisecond))
		if !errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Acquire: %v, want ErrHeld alone", err)
		}
	})
}

// That the key is taken comes late to one who waited for it, behind an observer that takes
// its time: let in meanwhile, it does not know.
func TestLateNewsOfATakenKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		f := &fake{}
		f.acquire = func(ctx context.Context, r *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				time.Sleep(time.Second)
				r.Busy()
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		l := openWith(t, f, lock.Config{Observe: func(ctx context.Context, ev lock.Event) {
			if ev.Kind == lock.Contended && ctx.Value(name{}) == "slow" {
				time.Sleep(ttl)
			}
		}})
		acquire := func(ctx context.Context, value string, wait time.Duration) {
			go func() { _, _ = l.Acquire(context.WithValue(ctx, name{}, value), "k", lock.Wait(wait)) }()
			synctest.Wait()
		}
		acquire(t.Context(), "first", 2*time.Second)
		acquire(t.Context(), "slow", 2*time.Second)
		acquire(t.Context(), "let in", 10*ttl)
		time.Sleep(2 * ttl)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.TryAcquire(ctx, "k"); errors.Is(err, lock.ErrHeld) || !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryAcquire behind one who is asking: %v, want ErrUnavailable", err)
		}
	})
}
