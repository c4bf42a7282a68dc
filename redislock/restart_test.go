package redislock_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// With MaxTTL, a server that was restarted, and has forgotten a lock, lets nobody in
// before its holder has been told.
func TestMaxTTL(t *testing.T) {
	t.Parallel()
	const ttl, maxTTL = 2 * time.Second, 3 * time.Second
	s := testserver.Redis(t) // without persistence
	open := func() lock.Locker {
		l, err := lock.Open(t.Context(), fmt.Sprintf("redis://%s/?ttl=%v&max_ttl=%v", s.Addr(), ttl, maxTTL))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		return l
	}
	a, b := open(), open()
	soon := func() {
		t.Helper()
		_, err := b.TryAcquire(t.Context(), "k")
		matches(t, "TryAcquire at a young server", err, lock.ErrUnavailable)
		if !strings.Contains(fmt.Sprint(err), "max_ttl, 3s") {
			t.Errorf("TryAcquire: %v, want the reason", err)
		}
	}
	soon()
	held, err := a.Acquire(t.Context(), "k", lock.Wait(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Start()
	started := time.Now()
	soon()
	next, err := b.Acquire(t.Context(), "k", lock.Wait(20*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Lost():
	default:
		t.Error("another was let in while Lost was open")
	}
	if ran := time.Since(started); ran < maxTTL-time.Second { // it is counted from before it answers
		t.Errorf("a lock was granted %v after the restart", ran)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if h, err := a.TryAcquire(t.Context(), "other"); err != nil {
		t.Errorf("later: %v", err)
	} else if err := h.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

func TestMaxTTLOutOfRange(t *testing.T) {
	s := testserver.Redis(t)
	for _, max := range []time.Duration{-1, 1, 14 * time.Second, lock.MaxTTL + 1} {
		_, err := redislock.New(dial(t, s.Addr()), redislock.Config{Config: lock.Config{TTL: 15 * time.Second}, MaxTTL: max})
		matches(t, fmt.Sprint(max), err, lock.ErrInvalid)
		if !strings.Contains(fmt.Sprint(err), "max_ttl") {
			t.Errorf("%v: %v, want an error that names it", max, err)
		}
	}
	for _, max := range []string{"", "x", "-1s", "1s", "9000h"} {
		_, err := lock.Open(t.Context(), "redis://"+s.Addr()+"/?max_ttl="+max)
		matches(t, max, err, lock.ErrInvalid)
	}
}
