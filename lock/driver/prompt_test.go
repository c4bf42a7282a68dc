package driver_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// promptFake is a fake that promises to keep to deadlines.
type promptFake struct{ *fake }

func (promptFake) Prompt() bool { return true }

func openPrompt(t *testing.T, f *fake) lock.Locker {
	t.Helper()
	return openPromptWith(t, f, lock.Config{TTL: ttl})
}

func openPromptWith(t *testing.T, f *fake, cfg lock.Config) lock.Locker {
	t.Helper()
	l, err := driver.New(func(h driver.Host) (driver.Driver, error) { f.host = h; return promptFake{f}, nil }, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// calledHere says whether this is the goroutine of who called the Locker or the handle.
func calledHere() bool {
	buf := make([]byte, 1<<16)
	stack := string(buf[:runtime.Stack(buf, false)])
	return strings.Contains(stack, "engine).TryAcquire(") || strings.Contains(stack, "handle).Release(")
}

// Only a caller that cannot give up, of a driver that keeps to deadlines, makes its
// calls itself.
func TestWhoCallsTheDriver(t *testing.T) {
	for _, test := range []struct {
		name   string
		ctx    context.Context
		open   func(*testing.T, *fake) lock.Locker
		itself bool
	}{
		{"prompt driver, no end", context.Background(), openPrompt, true},
		{"prompt driver, can be cancelled", t.Context(), openPrompt, false},
		{"any driver, no end", context.Background(), open, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fake{}
			var acquired, released bool
			f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
				acquired = calledHere()
				g := f.grant(nil)
				g.release = func(context.Context) error { released = calledHere(); return nil }
				return g, nil
			}
			l := test.open(t, f)
			h, err := l.TryAcquire(test.ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Release(test.ctx); err != nil {
				t.Fatal(err)
			}
			if acquired != test.itself || released != test.itself {
				t.Errorf("acquired by the caller: %v, released: %v; want %v", acquired, released, test.itself)
			}
		})
	}
}

// What a caller does itself is bounded and settled as everything is.
func TestCallsOfTheCallerAreSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		mute := func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		f.acquire = func(ctx context.Context, _ *driver.Request) (driver.Grant, error) { return nil, mute(ctx) }
		l := openPrompt(t, f)
		for what, acquire := range map[string]func() error{
			"TryAcquire": func() error { _, err := l.TryAcquire(context.Background(), "k"); return err },
			"Acquire": func() error {
				_, err := l.Acquire(context.Background(), "k", lock.Wait(10*time.Second))
				return err
			},
		} {
			began, abandoned := time.Now(), f.called("abandon")
			if err := acquire(); !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("%s: %v, want ErrUnavailable", what, err)
			}
			if took := time.Since(began); took != 10*time.Second {
				t.Errorf("%s: came back after %v, want 10s", what, took)
			}
			if synctest.Wait(); f.called("abandon") == abandoned {
				t.Errorf("%s: what it may have left was not abandoned", what)
			}
		}

		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.release = func(ctx context.Context) error {
				if f.called("release") < 3 {
					return mute(ctx)
				}
				return nil
			}
			return g, nil
		}
		h := mustTry(t, l, "k")
		if err := h.Release(context.Background()); err != nil {
			t.Errorf("Release, of which the third try is answered: %v", err)
		}
		if n := f.called("release"); n != 3 {
			t.Errorf("released %d times, want 3", n)
		}
		mustTry(t, l, "k")
	})
}

// Close ends a wait that its caller makes itself, and what is asked in it brings nothing
// any more.
func TestCloseEndsAWaitOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(ctx context.Context, r *driver.Request) (driver.Grant, error) {
			r.Busy()
			<-ctx.Done()
			return nil, ctx.Err()
		}
		l := openPrompt(t, f)
		ended := make(chan error, 1)
		go func() {
			_, err := l.Acquire(context.Background(), "k")
			ended <- err
		}()
		synctest.Wait()
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-ended; !errors.Is(err, lock.ErrClosed) {
			t.Errorf("Acquire: %v, want ErrClosed", err)
		}
		if f.called("abandon") == 0 {
			t.Error("the wait was not abandoned")
		}
	})
}

// A release under way on its caller's goroutine does not keep Close.
func TestCloseBesideAReleaseOfTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.release = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
			return g, nil
		}
		l := openPrompt(t, f)
		h := mustTry(t, l, "k")
		ended := make(chan error, 1)
		go func() { ended <- h.Release(context.Background()) }()
		synctest.Wait()
		began := time.Now()
		_ = l.Close()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Close took %v", took)
		}
		if err := <-ended; !errors.Is(err, lock.ErrUnavailable) {
			t.Errorf("Release: %v, want ErrUnavailable", err)
		}
	})
}

// What Release does not wait for elsewhere it does not wait for here, and its limit is one.
func TestReleaseOfTheCallerIsBounded(t *testing.T) {
	mute := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, open := range map[string]func(*testing.T, *fake, lock.Config) lock.Locker{"prompt": openPromptWith, "any": openWith} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				var renewed error
				f.renew = func(_ context.Context, leases []driver.Lease) []error {
					errs := make([]error, len(leases))
					for i := range errs {
						errs[i] = renewed
					}
					return errs
				}
				f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
					g := f.grant(nil)
					g.lease.term = time.Minute
					g.release = mute
					return g, nil
				}
				l := open(t, f, lock.Config{TTL: time.Minute})
				h := mustTry(t, l, "k")
				began := time.Now()
				if err := h.Release(context.Background()); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("Release: %v, want ErrUnavailable", err)
				}
				if took := time.Since(began); took != 10*time.Second {
					t.Errorf("Release without a deadline came back after %v, want 10s", took)
				}

				renewed = errNet
				h = mustTry(t, l, "lost")
				<-h.Lost()
				began = time.Now()
				if err := h.Release(context.Background()); !errors.Is(err, lock.ErrLost) {
					t.Errorf("Release: %v, want ErrLost", err)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("Release of a lost lock came back after %v, want at once", took)
				}
			})
		})
	}
}

// A caller may survive a panic of the driver's (a hook of an application's client, say).
// Then the key is not shut for good.
func TestPanicsOfTheDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		survive := func(what string, call func()) {
			t.Helper()
			defer func() {
				if recover() == nil {
					t.Errorf("%s: the panic was swallowed", what)
				}
			}()
			call()
		}
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			if f.called("acquire") == 1 {
				panic("acquire")
			}
			g := f.grant(nil)
			g.release = func(context.Context) error {
				if f.called("release") == 1 {
					panic("release")
				}
				return nil
			}
			return g, nil
		}
		l := openPrompt(t, f)
		survive("TryAcquire", func() { _, _ = l.TryAcquire(context.Background(), "k") })
		synctest.Wait()
		if f.called("abandon") == 0 {
			t.Error("what it may have left was not abandoned")
		}
		h := mustTry(t, l, "k")
		survive("Release", func() { _ = h.Release(context.Background()) })
		h, err := l.Acquire(t.Context(), "k", lock.Wait(time.Second))
		if err != nil {
			t.Fatalf("the lock was not released: %v", err)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// However a driver, or an SDK below it, looks for the end of a caller's own call, it finds
// it at the limit; and after the call, at once.
func TestTheEndOfTheCallersCalls(t *testing.T) {
	for name, wait := range map[string]func(context.Context) error{
		"Done": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"Err": func(ctx context.Context) error {
			for ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			return ctx.Err()
		},
		"Deadline": func(ctx context.Context) error {
			end, _ := ctx.Deadline()
			time.Sleep(time.Until(end))
			return ctx.Err()
		},
		"a context made of it": func(ctx context.Context) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			<-ctx.Done()
			return ctx.Err()
		},
		"a function after it": func(ctx context.Context) error {
			over := make(chan struct{})
			context.AfterFunc(ctx, func() { close(over) })
			<-over
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				type key struct{}
				f := &fake{}
				var given context.Context
				f.acquire = func(ctx context.Context, _ *driver.Request) (driver.Grant, error) {
					given = ctx
					err := wait(ctx)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("ended by %v", err)
					}
					return nil, err
				}
				l := openPrompt(t, f)
				began := time.Now()
				if _, err := l.TryAcquire(context.WithValue(context.Background(), key{}, 7), "k"); !errors.Is(err, lock.ErrUnavailable) {
					t.Errorf("TryAcquire: %v, want ErrUnavailable", err)
				}
				if took := time.Since(began); took != 10*time.Second {
					t.Errorf("came back after %v, want 10s", took)
				}
				if given.Value(key{}) != 7 {
					t.Error("the values of the caller's context are lost")
				}

				f.acquire = func(ctx context.Context, _ *driver.Request) (driver.Grant, error) {
					given = ctx
					return f.grant(nil), nil
				}
				h := mustTryHere(t, l)
				if given.Err() == nil {
					t.Error("the context of a call that is over has not ended")
				}
				if err := wait(given); err == nil {
					t.Error("nor does it end")
				}
				if err := h.Release(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// mustTryHere has the caller make the calls of a prompt driver itself.
func mustTryHere(t *testing.T, l lock.Locker) lock.Handle {
	t.Helper()
	h, err := l.TryAcquire(context.Background(), "here")
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// A caller's own call ends with the Locker, however the driver looks for it.
func TestCloseEndsTheCallersCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var byErr, byDone atomic.Bool
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) {
			g := f.grant(nil)
			g.release = func(ctx context.Context) error {
				for ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				byErr.Store(true)
				<-ctx.Done()
				byDone.Store(true)
				return ctx.Err()
			}
			return g, nil
		}
		l := openPromptWith(t, f, lock.Config{TTL: time.Hour})
		h := mustTryHere(t, l)
		go func() { _ = h.Release(context.Background()) }()
		synctest.Wait()
		_ = l.Close() // before the call's own limit, 5 s
		time.Sleep(10 * time.Millisecond)
		if !byErr.Load() || !byDone.Load() {
			t.Errorf("ended for Err: %v, for Done: %v", byErr.Load(), byDone.Load())
		}
	})
}
