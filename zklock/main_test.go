package zklock_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

func TestMain(m *testing.M) {
	if addr := os.Getenv(holderEnv); addr != "" {
		holdUntilKilled(addr)
	}
	goleak.VerifyTestMain(m)
}

const (
	ttl  = 5 * time.Second // the longest that the servers of the tests grant
	tick = 250 * time.Millisecond
)

// quiet drops what package zk says of servers that the tests have taken away.
type quiet struct{}

func (quiet) Printf(string, ...any) {}

// dial returns a client to look at a server with, and to meddle.
func dial(t testing.TB, addr string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect([]string{addr}, ttl, zk.WithLogger(quiet{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		for range events {
		}
	})
	return c
}

// lockerOn returns a Locker on these servers, which the test closes.
func lockerOn(t testing.TB, cfg zklock.Config, servers ...string) lock.Locker {
	t.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = ttl
	}
	if cfg.Tick == 0 {
		cfg.Tick = tick
	}
	l, err := zklock.New(servers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func acquire(t testing.TB, l lock.Locker, key string, opts ...lock.Option) lock.Handle {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	h, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return h
}

func release(t testing.TB, h lock.Handle) {
	t.Helper()
	if err := h.Release(context.WithoutCancel(t.Context())); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func matches(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want an error that matches %q", what, err, w)
		}
	}
}

// until waits for what the server, or another goroutine, is about to do.
func until(t testing.TB, what string, come func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !come(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it has not come: %s", what)
		}
	}
}
