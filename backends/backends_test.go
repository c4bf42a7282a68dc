package backends_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdfast-go/holdfast/backends"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

func TestOpen(t *testing.T) {
	for _, rawURL := range []string{
		"mem:backends", "redis://" + testserver.Redis(t).Addr(), "zk://" + testserver.ZooKeeper(t).Addr() + "?ttl=4s",
		"postgres://" + testserver.PostgresUser + "@" + testserver.Postgres(t).Addr() + "/postgres?sslmode=disable",
		"etcd://" + testserver.Etcd(t).Addr(), "file://" + t.TempDir(),
	} {
		l, err := backends.Open(t.Context(), rawURL)
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
			continue
		}
		h, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
		} else if err := h.Release(t.Context()); err != nil {
			t.Errorf("%s: Release: %v", rawURL, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: Close: %v", rawURL, err)
		}
	}
}

// TestConfigure: both ways of opening pass on what neither a URL nor a file can say.
func TestConfigure(t *testing.T) {
	for _, open := range []func(...func(*lock.Config)) (lock.Locker, error){
		func(c ...func(*lock.Config)) (lock.Locker, error) { return backends.Open(t.Context(), "mem:", c...) },
		func(c ...func(*lock.Config)) (lock.Locker, error) {
			return backends.Config{URL: "mem:"}.Open(t.Context(), c...)
		},
	} {
		var events atomic.Int32
		l, err := open(func(c *lock.Config) { c.Observe = func(context.Context, lock.Event) { events.Add(1) } })
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context(), ""); err == nil || events.Load() == 0 {
			t.Errorf("%d events of an acquisition that failed (%v)", events.Load(), err)
		}
		_ = l.Close()
	}
}

func TestSchemes(t *testing.T) {
	for _, scheme := range []string{"etcd", "etcds", "file", "mem", "postgres", "postgresql", "redis", "rediss", "zk"} {
		if !slices.Contains(lock.Schemes(), scheme) {
			t.Errorf("scheme %q is not registered", scheme)
		}
	}
	_, err := backends.Open(t.Context(), "nosuch://host")
	if err == nil || !strings.Contains(err.Error(), "redis, rediss") {
		t.Errorf("an unknown scheme: %v, want those that there are", err)
	}
}
