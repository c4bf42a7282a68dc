package redislock_test

import (
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/otherprocess"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/internal/throughproxy"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// suiteTTL leaves, of its margins, more than a busy machine takes to run a timer.
const suiteTTL = 3 * time.Second

// TestConformance runs the suite on Lockers that are connected to the server itself, each in
// a process of its own.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		s := newSuite(t, byProcess)
		s.Direct = true
		return s.harness()
	})
}

// TestConformanceThroughProxy gives each Locker a network of its own, with faults.
func TestConformanceThroughProxy(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		return newSuite(t, byURL).harness()
	})
}

// TestConformanceOnClient does so with clients of the application's own, whose
// defaults retry commands and ignore the end of contexts.
func TestConformanceOnClient(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		return newSuite(t, byClient).harness()
	})
}

// suite is a server, and a proxy for each Locker.
type suite struct {
	*throughproxy.Lockers
	server *testserver.Server
	direct *redis.Client
}

func newSuite(t *testing.T, open func(*testing.T, string, lock.Config) (lock.Locker, error)) *suite {
	server := testserver.Redis(t)
	return &suite{
		Lockers: &throughproxy.Lockers{Addr: server.Addr, Open: open, TTL: suiteTTL},
		server:  server,
		direct:  dial(t, server.Addr()),
	}
}

func byURL(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	if _, err := cfg.WithDefaults(); err != nil || cfg.Observe != nil || cfg.TTL <= 0 {
		return byClient(t, addr, cfg) // what a URL cannot say
	}
	return lock.Open(t.Context(), fmt.Sprintf("redis://%s/?ttl=%v&token_base=%d&owner=%s", addr, cfg.TTL, cfg.TokenBase, url.QueryEscape(cfg.Owner)))
}

func byClient(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	return redislock.New(c, redislock.Config{Config: cfg})
}

func byProcess(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	return otherprocess.Open(t, "redis://"+addr, func(c *lock.Config) { *c = cfg })
}

func (s *suite) harness() *conformance.Harness {
	h := s.Harness()
	h.Promises = lock.Fencing | lock.Leased
	h.Revoke = s.revoke
	h.Restart = func(*testing.T) {
		s.server.Kill()
		s.server.Start()
	}
	h.Left = func(t *testing.T, key string) time.Duration {
		ms, _ := do(t, s.direct, "PTTL", "holdfast:{"+key+"}").(int64)
		return time.Duration(ms) * time.Millisecond
	}
	return h
}

// revoke deletes the lock as an operator would, who finds it by its key.
func (s *suite) revoke(t *testing.T, key string) {
	t.Helper()
	if n := do(t, s.direct, "DEL", "holdfast:{"+key+"}"); n != int64(1) {
		t.Fatalf("the lock on %q is not where the documentation says", key)
	}
}
