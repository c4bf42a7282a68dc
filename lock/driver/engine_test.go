package driver_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// A lock held for a day is renewed every third of its TTL or a little sooner, and
// that costs next to nothing.
func TestHoldForADay(t *testing.T) {
	for name, opts := range map[string][]memlock.Option{"Sessions": nil, "OwnLeases": {memlock.OwnLeases()}} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			renewals := 0
			synctest.Test(t, func(t *testing.T) {
				server := memlock.NewServer(opts...)
				server.Fail(func(op memlock.Op) error {
					if op.Kind == "renew" && !op.Reply {
						renewals++
					}
					return nil
				})
				l, err := server.Locker(lock.Config{})
				if err != nil {
					t.Fatal(err)
				}
				h := mustTry(t, l, "k")
				time.Sleep(24 * time.Hour)
				if err := h.Err(); err != nil {
					t.Error(err)
				}
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
			t.Logf("%d renewals in %v", renewals, time.Since(began))
			if least, most := int(24*time.Hour/(5*time.Second)), int(24*time.Hour/(3*time.Second)); renewals < least || renewals > most {
				t.Errorf("%d renewals, want %d to %d", renewals, least, most)
			}
		})
	}
}

// Whoever waits hears once that the server cannot be asked; whoever does not wait has the
// error.
func TestUnansweredIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		var down atomic.Bool
		down.Store(true)
		server.Fail(func(memlock.Op) error {
			if down.Load() {
				return errors.New("down")
			}
			return nil
		})
		var mu sync.Mutex
		var events []lock.Event
		taken := func() []lock.Event {
			mu.Lock()
			defer mu.Unlock()
			defer func() { events = nil }()
			return events
		}
		l, err := server.Locker(lock.Config{Observe: func(_ context.Context, ev lock.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, ev)
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("TryAcquire: %v", err)
		}
		if got := taken(); len(got) != 1 || got[0].Kind != lock.Failed {
			t.Errorf("events of an attempt that does not wait: %+v", got)
		}
		time.AfterFunc(time.Minute, func() { down.Store(false) })
		h, err := l.Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		got := taken()
		if len(got) != 2 || got[0].Kind != lock.Unanswered || got[0].Key != "k" || !errors.Is(got[0].Err, lock.ErrUnavailable) || got[1].Kind != lock.Acquired {
			t.Errorf("events of a wait for the server: %+v", got)
		}
		_ = h.Release(t.Context())
		_ = l.Close()
	})
}

// Whoever stands behind another of this process learns with it that the key is taken, at the
// server or by the other itself; and an ended wait says so, whichever of them ends first.
func TestThoseBehindLearnThatTheKeyIsTaken(t *testing.T) {
	for _, here := range []bool{false, true} {
		t.Run(fmt.Sprintf("here %v", here), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const calls = 5
				server := memlock.NewServer()
				var contended atomic.Int32
				l, err := server.Locker(lock.Config{Observe: func(_ context.Context, ev lock.Event) {
					if ev.Kind == lock.Contended {
						contended.Add(1)
					}
				}})
				if err != nil {
					t.Fatal(err)
				}
				other, err := server.Locker(lock.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = other.Close() }()
				if !here {
					mustTry(t, other, "k")
				}
				answer := server.Stall(l)
				var all sync.WaitGroup
				for i := range calls {
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Second)
						defer cancel()
						h, err := l.Acquire(ctx, "k")
						if here && err == nil {
							defer func() { _ = h.Release(t.Context()) }()
							time.Sleep(2 * time.Second)
							return
						}
						if !errors.Is(err, lock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("waiter %d: %v, want ErrHeld", i, err)
						}
					})
				}
				synctest.Wait() // all stand in the queue, and nobody knows anything
				if n := contended.Load(); n != 0 {
					t.Errorf("%d have found the key taken before the server has said so", n)
				}
				answer()
				all.Wait()
				want := int32(calls)
				if here {
					want--
				}
				if n := contended.Load(); n != want {
					t.Errorf("%d have found the key taken, want %d", n, want)
				}
				_ = l.Close()
			})
		})
	}
}

// That a lock was acquired is told before that it was lost, even if those who wait for it
// are to be told, too, by an observer that takes its time.
func TestAcquiredIsToldFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []lock.EventKind
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			time.Sleep(time.Second)
			return f.grant(nil), nil
		}
		l := openWith(t, f, lock.Config{Observe: func(_ context.Context, ev lock.Event) {
			switch ev.Kind {
			case lock.Contended:
				time.Sleep(time.Second)
			case lock.Acquired, lock.LostLock:
				mu.Lock()
				defer mu.Unlock()
				told = append(told, ev.Kind)
				if ev.Kind == lock.Acquired && (ev.Token != 1 || ev.Took != time.Second || ev.Left != 500*time.Millisecond) {
					t.Errorf("told %+v", ev)
				}
			}
		}})
		go func() { _, _ = l.Acquire(t.Context(), "k", lock.MaxHold(500*time.Millisecond)) }()
		synctest.Wait()
		go func() { _, _ = l.Acquire(t.Context(), "k", lock.Wait(2*time.Second)) }()
		time.Sleep(5 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		if want := []lock.EventKind{lock.Acquired, lock.LostLock}; !slices.Equal(told, want) {
			t.Errorf("told of %v, want %v", told, want)
		}
	})
}

// An event has the context of the call that caused it, however late.
func TestEventsHaveTheContextOfTheCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type caller struct{}
		of := func(who string) context.Context { return context.WithValue(t.Context(), caller{}, who) }
		var mu sync.Mutex
		told := make(map[string]any) // who caused the event of which kind and key
		f := &fake{}
		f.acquire = func(_ context.Context, r *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.release = func(context.Context) error {
				if f.called("release") == 1 {
					return errNet
				}
				return nil
			}
			return g, nil
		}
		l := openWith(t, f, lock.Config{Observe: func(ctx context.Context, ev lock.Event) {
			mu.Lock()
			defer mu.Unlock()
			told[ev.Kind.String()+" "+ev.Key] = ctx.Value(caller{})
		}})
		for _, key := range []string{"released", "closed"} {
			h, err := l.TryAcquire(of("acquirer"), key)
			if err != nil {
				t.Fatal(err)
			}
			if key == "released" {
				ctx, cancel := context.WithCancel(of("releaser"))
				cancel()
				_ = h.Release(ctx)
			}
		}
		_ = l.Close()
		synctest.Wait() // a release is told by who has made it
		mu.Lock()
		defer mu.Unlock()
		if want := map[string]any{
			"acquired released": "acquirer", "released released": "releaser",
			"acquired closed": "acquirer", "lost closed": nil, "released closed": nil,
		}; !maps.Equal(told, want) {
			t.Errorf("told by %v, want %v", told, want)
		}
	})
}

// What waits for an answer is left behind when its caller goes, and whatever it
// brings later is given back.
func TestLateGrantIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		go1 := make(blocked)
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) { go1.wait(); return f.grant(nil), nil }
		l := open(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.TryAcquire(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrHeld) {
			t.Errorf("TryAcquire: %v, want DeadlineExceeded", err)
		}
		close(go1)
		synctest.Wait()
		if n := f.called("release"); n != 1 {
			t.Errorf("the late grant was released %d times, want once", n)
		}
	})
}

// A driver that never returns is abandoned while it is still at it.
func TestHangingAcquireIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		forever := make(blocked)
		defer close(forever)
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) { forever.wait(); return nil, errNet }
		l := open(t, f)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = l.Acquire(ctx, "k")
		time.Sleep(ttl)
		if f.called("abandon") == 0 {
			t.Error("not abandoned")
		}
	})
}

// An abandonment that fails is tried again, for two TTLs, and then given up.
func TestAbandonIsRetriedAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{abandon: func(context.Context, *driver.Request) error { return errNet }}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) { return nil, errNet }
		l := open(t, f)
		if _, err := l.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, errNet) {
			t.Errorf("TryAcquire: %v, want ErrUnavailable with its cause", err)
		}
		time.Sleep(2 * ttl)
		n := f.called("abandon")
		if n < 5 || n > 60 {
			t.Errorf("abandoned %d times in two TTLs", n)
		}
		time.Sleep(10 * ttl)
		if later := f.called("abandon"); later > n+1 {
			t.Errorf("abandoned %d times more after two TTLs", later-n)
		}
	})
}

// What cannot be abandoned may sit on the shared lease, which is ended then rather
// than a ghost kept alive: its grants are lost.
func TestGhostEndsSharedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		shared := &fakeLease{f: f, term: ttl}
		f.acquire = func(_ context.Context, r *driver.Request) (driver.Grant, error) {
			if r.Key == "doubtful" {
				return nil, errNet
			}
			f.host.Keep(shared, driver.Now())
			return f.grant(shared), nil
		}
		f.abandon = func(context.Context, *driver.Request) error { return errNet }
		l := open(t, f)
		h := mustTry(t, l, "k")
		_, _ = l.TryAcquire(t.Context(), "doubtful")
		time.Sleep(2*ttl - time.Second)
		if err := h.Err(); err != nil || f.called("end") != 0 {
			t.Fatalf("too early: Err %v, End called %d times", err, f.called("end"))
		}
		time.Sleep(2 * time.Second)
		if !isLost(h) || f.called("end") != 0 {
			t.Errorf("lost %v, End called %d times; want a holder that is told and still alone", isLost(h), f.called("end"))
		}
		_ = h.Release(t.Context())
		synctest.Wait()
		if f.called("end") != 1 {
			t.Errorf("End called %d times, want once when the last holder has released", f.called("end"))
		}
	})
}

// A shared lease is renewed from when it was announced until it ends, with grants or
// without.
func TestKeptLeaseIsRenewedWithoutGrants(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := open(t, f)
		f.host.Keep(&fakeLease{f: f, term: ttl}, driver.Now())
		time.Sleep(10 * ttl)
		if n := f.called("renew"); n < 30 || n > 41 {
			t.Errorf("renewed %d times in ten TTLs", n)
		}
		if err := l.Close(); err != nil || f.called("end") != 1 {
			t.Errorf("Close: %v, End called %d times", err, f.called("end"))
		}
	})
}

// Grants on a lease that ended before they were returned are worth nothing: the
// waiter goes on and gets one on another lease.
func TestLeaseLostWhileWaiting(t *testing.T) {
	for name, lose := range map[string]func(f *fake, l *fakeLease){
		"server says so":   func(f *fake, l *fakeLease) { f.host.LeaseLost(l, errNet) },
		"deadline is over": func(_ *fake, _ *fakeLease) { time.Sleep(2 * ttl) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{renew: func(_ context.Context, leases []driver.Lease) []error {
					errs := make([]error, len(leases))
					for i := range errs {
						errs[i] = errNet
					}
					return errs
				}}
				first, second := &fakeLease{f: f, term: ttl}, &fakeLease{f: f, term: ttl}
				n := 0
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					n++
					if n > 1 {
						f.host.Keep(second, driver.Now())
						return f.grant(second), nil
					}
					f.host.Keep(first, driver.Now())
					lose(f, first)
					return f.grant(first), nil
				}
				l := open(t, f)
				h, err := l.Acquire(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				if token, _ := h.Token(); token != 2 || h.Err() != nil {
					t.Errorf("token %d, Err %v; want the second grant", token, h.Err())
				}
				if f.called("end") != 1 {
					t.Errorf("End called %d times, want once for the first lease", f.called("end"))
				}
			})
		})
	}
}

// The server may tell of a grant's end before the driver has returned it.
func TestGrantLostBeforeItIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(_ context.Context, r *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				f.host.GrantLost(r.ID, errNet)
			}
			return f.grant(nil), nil
		}
		h, err := open(t, f).Acquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if token, _ := h.Token(); token != 2 {
			t.Errorf("token %d, want the second grant", token)
		}
	})
}

// A grant whose answer took longer than half of its term is renewed before it is
// returned, or not returned.
func TestStaleGrant(t *testing.T) {
	for name, fails := range map[string]bool{"renewed first": false, "cannot be renewed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					g := f.grant(nil)
					time.Sleep(ttl * 2 / 3)
					return g, nil
				}
				f.renew = func(_ context.Context, leases []driver.Lease) []error {
					if fails {
						return []error{errNet}
					}
					return make([]error, len(leases))
				}
				h, err := open(t, f).TryAcquire(t.Context(), "k")
				synctest.Wait()
				if fails {
					if !errors.Is(err, lock.ErrUnavailable) || f.called("release") != 1 {
						t.Errorf("error %v, released %d times; want ErrUnavailable, once", err, f.called("release"))
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if v := h.Valid(); v < ttl/2 || v > ttl {
					t.Errorf("Valid() = %v of %v", v, ttl)
				}
			})
		})
	}
}

// Renewals go in batches, and none of them waits for another's answer for ever.
func TestRenewalsAreBatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		var greatest atomic.Int64
		f := &fake{}
		f.renew = func(_ context.Context, leases []driver.Lease) []error {
			greatest.Store(max(greatest.Load(), int64(len(leases))))
			return make([]error, len(leases))
		}
		l := open(t, f)
		var handles []lock.Handle
		for i := range n {
			handles = append(handles, mustTry(t, l, fmt.Sprint(i)))
		}
		time.Sleep(10 * ttl)
		for _, h := range handles {
			if err := h.Err(); err != nil {
				t.Fatal(err)
			}
		}
		calls := f.called("renew")
		t.Logf("%d locks for ten TTLs: %d calls of Renew, of up to %d", n, calls, greatest.Load())
		if calls > 35*n/20 {
			t.Errorf("%d calls of Renew, want batches", calls)
		}
	})
}

// A renewal that hangs, in a driver that ignores its context, neither delays the
// loss nor the renewal of others, nor is it waited for.
func TestHangingRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		forever := make(blocked)
		defer close(forever)
		var hang sync.Map // Lease → true
		f.renew = func(_ context.Context, leases []driver.Lease) []error {
			for _, l := range leases {
				if _, ok := hang.Load(l); ok {
					forever.wait()
				}
			}
			return make([]error, len(leases))
		}
		l := open(t, f)
		first := f.grant(nil)
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				hang.Store(first.lease, true)
				return first, nil
			}
			return f.grant(nil), nil
		}
		stuck := mustTry(t, l, "stuck")
		fine := mustTry(t, l, "fine") // in one batch with the other, or not
		began := time.Now()
		<-stuck.Lost()
		if took := time.Since(began); took > ttl {
			t.Errorf("Lost closed after %v", took)
		}
		time.Sleep(5 * ttl)
		if err := fine.Err(); err != nil {
			t.Error(err)
		}
	})
}

// An answer that comes after the deadline revives nothing.
func TestLateRenewalIsDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		late := make(blocked)
		f.renew = func(_ context.Context, leases []driver.Lease) []error { late.wait(); return make([]error, len(leases)) }
		h := mustTry(t, open(t, f), "k")
		<-h.Lost()
		close(late)
		synctest.Wait()
		time.Sleep(ttl)
		if err := h.Err(); !errors.Is(err, lock.ErrLost) || h.Valid() != 0 {
			t.Errorf("Err %v, Valid %v after a late renewal", err, h.Valid())
		}
	})
}

// Release stops the renewals and waits for the one under way before it is sent.
func TestReleaseWaitsForRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		renewing, answer := make(chan bool, 1), make(blocked)
		f.renew = func(_ context.Context, leases []driver.Lease) []error {
			renewing <- true
			answer.wait()
			return make([]error, len(leases))
		}
		h := mustTry(t, open(t, f), "k")
		<-renewing
		done := make(chan error)
		go func() { done <- h.Release(t.Context()) }()
		synctest.Wait()
		if f.called("release") != 0 {
			t.Error("released while a renewal was under way")
		}
		close(answer)
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(5 * ttl)
		if n := f.called("renew"); n != 1 {
			t.Errorf("renewed %d times, the last after the release", n)
		}
	})
}

// Close returns in time whatever the driver does.
func TestCloseIsBounded(t *testing.T) {
	forever := func(ctx context.Context) error { <-ctx.Done(); time.Sleep(time.Hour); return ctx.Err() }
	for name, prepare := range map[string]func(f *fake){
		"release hangs": func(f *fake) {
			f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
				g := f.grant(nil)
				g.release = forever
				return g, nil
			}
		},
		"end hangs": func(f *fake) {
			f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
				shared := &fakeLease{f: f, term: ttl, end: forever}
				f.host.Keep(shared, driver.Now())
				return f.grant(shared), nil
			}
		},
		"close hangs": func(f *fake) { f.close = forever },
		"renewal hangs": func(f *fake) {
			f.renew = func(ctx context.Context, leases []driver.Lease) []error {
				return []error{forever(ctx)}
			}
		},
		"everything hangs": func(f *fake) {
			f.acquire = func(ctx context.Context, r *driver.Request) (driver.Grant, error) {
				if r.Key == "waiting" {
					return nil, forever(ctx)
				}
				g := f.grant(nil)
				g.release = forever
				return g, nil
			}
			f.abandon = func(ctx context.Context, _ *driver.Request) error { return forever(ctx) }
			f.close = forever
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				prepare(f)
				l := open(t, f)
				h := mustTry(t, l, "k")
				waiting := make(chan error, 2)
				go func() { _, err := l.Acquire(t.Context(), "k"); waiting <- err }()
				if name == "everything hangs" {
					go func() { _, err := l.Acquire(t.Context(), "waiting"); waiting <- err }()
				} else {
					waiting <- lock.ErrClosed
				}
				time.Sleep(ttl / 2)
				began := time.Now()
				_ = l.Close()
				if took := time.Since(began); took > 2*time.Second {
					t.Errorf("Close took %v", took)
				}
				if err := h.Err(); !errors.Is(err, lock.ErrLost) || !errors.Is(err, lock.ErrClosed) {
					t.Errorf("Err after Close: %v", err)
				}
				for range 2 {
					if err := <-waiting; !errors.Is(err, lock.ErrClosed) {
						t.Errorf("a wait that Close ended: %v", err)
					}
				}
				if err := h.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
					t.Errorf("Release after Close: %v", err)
				}
				time.Sleep(2 * time.Hour) // what hangs ends
			})
		})
	}
}

// Errors are told apart: permanent ones return at once, others are retried, and the
// error of a wait says what was seen last.
func TestErrorsOfAcquire(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		is   []error
		not  []error
		wait time.Duration // how long Acquire with Wait(3s) takes
	}{
		"held":        {lock.ErrHeld, []error{lock.ErrHeld}, []error{lock.ErrUnavailable}, 3 * time.Second},
		"unknown":     {errNet, []error{lock.ErrUnavailable, errNet}, []error{lock.ErrHeld}, 3 * time.Second},
		"refused":     {driver.Refused(errNet), []error{lock.ErrUnavailable, errNet}, []error{lock.ErrHeld}, 3 * time.Second},
		"timeout":     {context.DeadlineExceeded, []error{lock.ErrUnavailable}, []error{lock.ErrHeld, context.DeadlineExceeded}, 3 * time.Second},
		"too late":    {driver.Refused(context.Canceled), []error{lock.ErrUnavailable}, []error{lock.ErrHeld, context.Canceled}, 3 * time.Second},
		"permanent":   {driver.Permanent(errNet), []error{errNet}, []error{lock.ErrHeld, lock.ErrUnavailable}, 0},
		"invalid":     {driver.Permanent(lock.ErrInvalid), []error{lock.ErrInvalid}, []error{lock.ErrHeld, lock.ErrUnavailable}, 0},
		"unsupported": {driver.Permanent(errors.ErrUnsupported), []error{errors.ErrUnsupported}, []error{lock.ErrHeld, lock.ErrUnavailable}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{acquire: func(context.Context, *driver.Request) (driver.Grant, error) { return nil, c.err }}
				l := open(t, f)
				_, tryErr := l.TryAcquire(t.Context(), "k")
				tries := f.called("acquire")
				began := time.Now()
				_, waitErr := l.Acquire(t.Context(), "k", lock.Wait(3*time.Second))
				if took := time.Since(began); took != c.wait {
					t.Errorf("Acquire took %v, want %v", took, c.wait)
				}
				if n := f.called("acquire") - tries; tries != 1 || c.wait > 0 && (n < 10 || n > 100) {
					t.Errorf("TryAcquire asked %d times, Acquire %d times in %v", tries, n, c.wait)
				}
				for _, err := range []error{tryErr, waitErr} {
					for _, is := range c.is {
						if !errors.Is(err, is) {
							t.Errorf("error %v, want one that matches %q", err, is)
						}
					}
					for _, not := range c.not {
						if errors.Is(err, not) {
							t.Errorf("error %v matches %q", err, not)
						}
					}
				}
			})
		})
	}
}

// A wait that is over when the key is about to be asked for ends with what was last seen
// of the key, and not as if the caller's context had ended.
func TestWaitEndsBeforeTheQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(ctx context.Context, r *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				return nil, lock.ErrHeld
			}
			<-ctx.Done()
			return nil, driver.Refused(ctx.Err())
		}
		_, err := open(t, f).Acquire(t.Context(), "k", lock.Wait(100*time.Millisecond))
		if !errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v, want ErrHeld alone", err)
		}
	})
}

// ErrAgain is answered by the same request at once; an unknown outcome by a new one,
// when the old one is abandoned.
func TestRequestIDs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []string
		abandoned := make(map[string]bool)
		answers := []error{driver.ErrAgain, driver.ErrAgain, lock.ErrHeld, errNet, driver.Refused(errNet)}
		f := &fake{}
		f.abandon = func(_ context.Context, r *driver.Request) error { abandoned[r.ID] = true; return nil }
		f.acquire = func(_ context.Context, r *driver.Request) (driver.Grant, error) {
			ids = append(ids, r.ID)
			if n := len(ids); n <= len(answers) {
				return nil, answers[n-1]
			}
			return f.grant(nil), nil
		}
		if _, err := open(t, f).Acquire(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{0, 0, 0, 0, 1, 1} { // the first, or the second, ID
			if first := ids[i] == ids[0]; first != (want == 0) || len(ids[i]) != 32 {
				t.Errorf("attempt %d has the ID %s; IDs are %q", i+1, ids[i], ids)
			}
		}
		if len(abandoned) != 1 || !abandoned[ids[0]] {
			t.Errorf("abandoned %v, want the first ID alone", abandoned)
		}
	})
}

// While a key is held or asked for inside the Locker, only one local waiter asks the
// server.
func TestOnlyFirstLocalWaiterAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		asking, most := 0, 0
		var mu sync.Mutex
		f.acquire = func(ctx context.Context, r *driver.Request) (driver.Grant, error) {
			mu.Lock()
			asking++
			most = max(most, asking)
			mu.Unlock()
			time.Sleep(10 * time.Millisecond)
			mu.Lock()
			asking--
			mu.Unlock()
			return f.grant(nil), nil
		}
		l := open(t, f)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				h, err := l.Acquire(t.Context(), "k")
				if err != nil {
					t.Error(err)
					return
				}
				_ = h.Release(t.Context())
			})
		}
		wg.Wait()
		if most != 1 || f.called("acquire") != 20 {
			t.Errorf("%d asked at once, %d asked in all", most, f.called("acquire"))
		}
	})
}

// A try beside a local attempt that does not know yet waits for what that finds out.
func TestTryWaitsForWhatIsBeingAsked(t *testing.T) {
	for name, c := range map[string]struct {
		first error
		want  error
	}{
		"the first gets it":           {nil, lock.ErrHeld},
		"the first finds it taken":    {lock.ErrHeld, lock.ErrHeld},
		"the first finds out nothing": {errNet, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					if f.called("acquire") > 1 {
						return f.grant(nil), nil
					}
					time.Sleep(time.Second)
					if c.first != nil {
						return nil, c.first
					}
					return f.grant(nil), nil
				}
				l := open(t, f)
				go func() { _, _ = l.TryAcquire(t.Context(), "k") }()
				synctest.Wait()
				_, err := l.TryAcquire(t.Context(), "k")
				if !errors.Is(err, c.want) {
					t.Errorf("the second try: %v, want %v", err, c.want)
				}
				synctest.Wait()
			})
		})
	}
}

// Jeopardy is told when a third of the term is left, once, and not when all is well.
func TestJeopardy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var left []time.Duration
		f := &fake{}
		var down atomic.Bool
		f.renew = func(_ context.Context, leases []driver.Lease) []error {
			errs := make([]error, len(leases))
			if down.Load() {
				errs[0] = errNet
			}
			return errs
		}
		l := openWith(t, f, lock.Config{Observe: func(_ context.Context, ev lock.Event) {
			if ev.Kind == lock.Jeopardy {
				mu.Lock()
				left = append(left, ev.Left)
				mu.Unlock()
			}
		}})
		h := mustTry(t, l, "k")
		time.Sleep(5 * ttl)
		mu.Lock()
		if len(left) != 0 {
			t.Errorf("jeopardy while all was well: %v", left)
		}
		mu.Unlock()
		down.Store(true)
		<-h.Lost()
		mu.Lock()
		defer mu.Unlock()
		if len(left) != 1 || left[0] < ttl/4 || left[0] > ttl*2/5 {
			t.Errorf("jeopardy with %v left of %v, want once with about a third", left, ttl)
		}
	})
}

// Times at the edge of what an int64 holds are no trouble.
func TestGreatTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		l := openWith(t, f, lock.Config{TTL: lock.MaxTTL})
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			return f.grant(&fakeLease{f: f, term: lock.MaxTTL}), nil
		}
		h, err := l.Acquire(t.Context(), "k", lock.MaxHold(math.MaxInt64), lock.Wait(math.MaxInt64))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if err := h.Err(); err != nil {
			t.Error(err)
		}
		if v := h.Valid(); v <= 0 || v > lock.MaxTTL {
			t.Errorf("Valid() = %v", v)
		}
	})
}

func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{inspect: func(_ context.Context, key string) (lock.Info, error) {
			if key == "bad" {
				return lock.Info{}, errNet
			}
			return lock.Info{Holders: []lock.Holder{{Owner: "x", Token: 5}}, Waiters: 3}, nil
		}}
		l := openWith(t, f, lock.Config{TokenBase: 100})
		info, err := l.Inspect(t.Context(), "k")
		if err != nil || info.Key != "k" || info.Waiters != 3 || info.Holders[0].Token != 105 {
			t.Errorf("Inspect = %+v, %v", info, err)
		}
		if _, err := l.Inspect(t.Context(), "bad"); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, errNet) {
			t.Errorf("Inspect of a server that fails: %v", err)
		}
		if _, err := l.Inspect(t.Context(), ""); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("Inspect of no key: %v", err)
		}
	})
}

func TestNewChecksItsConfiguration(t *testing.T) {
	_, err := driver.New(func(driver.Host) (driver.Driver, error) { t.Error("opened"); return nil, nil }, lock.Config{TTL: -1})
	if !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("New: %v, want ErrInvalid", err)
	}
	if _, err := driver.New(func(driver.Host) (driver.Driver, error) { return nil, errNet }, lock.Config{}); !errors.Is(err, errNet) {
		t.Errorf("New: %v, want what open returned", err)
	}
}
