package lock_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

func TestConfigWithDefaults(t *testing.T) {
	cfg, err := lock.Config{}.WithDefaults()
	if err != nil || cfg.TTL != lock.DefaultTTL || strings.Count(cfg.Owner, ":") < 2 {
		t.Errorf("the zero Config gives %+v, %v", cfg, err)
	}
	for name, cfg := range map[string]lock.Config{
		"negative TTL":       {TTL: -time.Second},
		"one nanosecond":     {TTL: 1},
		"below the minimum":  {TTL: lock.MinTTL - 1},
		"above the maximum":  {TTL: lock.MaxTTL + 1},
		"greatest duration":  {TTL: math.MaxInt64},
		"least duration":     {TTL: math.MinInt64},
		"owner with newline": {Owner: "a\nb"},
		"owner not UTF-8":    {Owner: "\xff"},
		"owner too long":     {Owner: strings.Repeat("x", lock.MaxOwnerLen+1)},
		"token base":         {TokenBase: lock.MaxTokenBase + 1},
	} {
		if _, err := cfg.WithDefaults(); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
		}
	}
}

func TestCheckKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"": false, "a": true, "\x00": true, "\xff": true,
		strings.Repeat("x", lock.MaxKeyLen):   true,
		strings.Repeat("x", lock.MaxKeyLen+1): false,
	} {
		if err := lock.CheckKey(key); (err == nil) != ok || err != nil && !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("a key of %d bytes: error %v", len(key), err)
		}
	}
}

func TestResolve(t *testing.T) {
	s, err := lock.Resolve(lock.Shared(), lock.Wait(time.Second), lock.MaxHold(time.Minute), lock.Margin(time.Millisecond))
	want := lock.Settings{Mode: lock.ModeShared, Wait: time.Second, MaxHold: time.Minute, Margin: time.Millisecond}
	if err != nil || s != want {
		t.Errorf("Resolve = %+v, %v; want %+v", s, err, want)
	}
	if s, err := lock.Resolve(); err != nil || s.Wait != lock.NoLimit {
		t.Errorf("Resolve of nothing = %+v, %v", s, err)
	}
	for name, opt := range map[string]lock.Option{
		"option 1 is nil": nil, "wait -1ns": lock.Wait(-1), "max hold -1ns": lock.MaxHold(-1), "margin -1ns": lock.Margin(-1),
	} {
		if _, err := lock.Resolve(opt); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), name) {
			t.Errorf("error %v, want ErrInvalid that names %q", err, name)
		}
	}
}

func TestFeatures(t *testing.T) {
	all := lock.Fencing | lock.FIFO | lock.SharedMode | lock.Leased
	if got := all.String(); got != "fencing,fifo,shared,leased" {
		t.Errorf("String() = %q", got)
	}
	if f, err := lock.ParseFeatures(all.String()); err != nil || f != all {
		t.Errorf("ParseFeatures = %v, %v", f, err)
	}
	if _, err := lock.ParseFeatures("fencing,magic"); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), "magic") {
		t.Errorf("error %v, want ErrInvalid that names the unknown feature", err)
	}
}

func TestRequire(t *testing.T) {
	l := newLocker(t, memlock.NewServer(memlock.OwnLeases()))
	if err := lock.Require(l, lock.Fencing|lock.Leased); err != nil {
		t.Error(err)
	}
	err := lock.Require(l, lock.FIFO|lock.Leased)
	if !errors.Is(err, errors.ErrUnsupported) || !strings.Contains(err.Error(), "fifo") || strings.Contains(err.Error(), "leased") {
		t.Errorf("error %v, want one that names what is missing", err)
	}
}

func TestDo(t *testing.T) {
	errWork := errors.New("the work failed")
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		l := newLocker(t, server)
		free := func(what string) {
			t.Helper()
			h, err := l.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Errorf("after %s: %v", what, err)
				return
			}
			_ = h.Release(t.Context())
		}
		err := lock.Do(t.Context(), l, "k", func(ctx context.Context, h lock.Handle) error { return errors.Join(ctx.Err(), h.Err()) })
		if err != nil {
			t.Errorf("Do of work that succeeds: %v", err)
		}
		free("work that succeeds")

		err = lock.Do(t.Context(), l, "k", func(context.Context, lock.Handle) error { return errWork })
		if !errors.Is(err, errWork) || errors.Is(err, lock.ErrLost) {
			t.Errorf("Do of work that fails: %v", err)
		}
		free("work that fails")

		err = lock.Do(t.Context(), l, "k", func(ctx context.Context, _ lock.Handle) error {
			server.Revoke("k")
			<-ctx.Done()
			if cause := context.Cause(ctx); !errors.Is(cause, lock.ErrLost) {
				t.Errorf("cause of the work's context: %v, want ErrLost", cause)
			}
			return errWork
		})
		if !errors.Is(err, errWork) || !errors.Is(err, lock.ErrLost) {
			t.Errorf("Do of work whose lock was lost: %v, want both errors", err)
		}
		free("a loss")

		func() {
			defer func() { _ = recover() }()
			_ = lock.Do(t.Context(), l, "k", func(context.Context, lock.Handle) error { panic("work") })
		}()
		free("a panic")

		h, _ := l.TryAcquire(t.Context(), "k")
		err = lock.Do(t.Context(), l, "k", func(context.Context, lock.Handle) error {
			t.Error("the work was called without the lock")
			return nil
		}, lock.Wait(time.Minute))
		if !errors.Is(err, lock.ErrHeld) {
			t.Errorf("Do of a held key: %v, want ErrHeld", err)
		}
		_ = h.Release(t.Context())
	})
}

// The work's context ends with its parent, and the lock is released nevertheless.
func TestDoWithParentCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLocker(t, memlock.NewServer())
		ctx, cancel := context.WithCancel(t.Context())
		err := lock.Do(ctx, l, "k", func(ctx context.Context, _ lock.Handle) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrLost) {
			t.Errorf("Do: %v, want Canceled alone", err)
		}
		if _, err := l.TryAcquire(t.Context(), "k"); err != nil {
			t.Errorf("after Do: %v", err)
		}
	})
}

// A release whose answer is lost is no failure of the work.
func TestDoWithUnknownRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		l := newLocker(t, server)
		err := lock.Do(t.Context(), l, "k", func(context.Context, lock.Handle) error {
			server.Stall(l)
			return nil
		})
		if err != nil {
			t.Errorf("Do: %v, want nil", err)
		}
	})
}

func TestContextOfLostHandle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		l := newLocker(t, server)
		h, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		server.Revoke("k")
		ctx, cancel := lock.Context(t.Context(), h)
		defer cancel()
		if !errors.Is(context.Cause(ctx), lock.ErrLost) {
			t.Errorf("cause %v, want ErrLost at once", context.Cause(ctx))
		}
	})
}

func newLocker(t *testing.T, server *memlock.Server) lock.Locker {
	l, err := server.Locker(lock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
