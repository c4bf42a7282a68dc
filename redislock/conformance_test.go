package redislock_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// suiteTTL leaves, of its margins, more than a busy machine takes to run a timer.
const suiteTTL = 3 * time.Second

// TestConformance runs the suite on Lockers that are connected to the server itself.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		s := newSuite(t, byURL)
		s.unproxied = true
		h := s.harness()
		h.Isolate, h.SlowReplies, h.LoseReply = nil, nil, nil
		for _, fault := range []string{"Isolate", "SlowReplies", "LoseReply"} {
			h.Skip[fault] = "there is no proxy here: see TestConformanceThroughProxy"
		}
		return h
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
	server *testserver.Server
	direct *redis.Client
	open   func(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error)

	unproxied bool

	mu      sync.Mutex
	proxies map[lock.Locker]*conformance.Proxy
}

func newSuite(t *testing.T, open func(*testing.T, string, lock.Config) (lock.Locker, error)) *suite {
	server := testserver.Redis(t)
	return &suite{
		server: server, direct: dial(t, server.Addr()), open: open,
		proxies: make(map[lock.Locker]*conformance.Proxy),
	}
}

func byURL(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	if _, err := cfg.WithDefaults(); err != nil || cfg.Observe != nil || cfg.TTL <= 0 {
		return byClient(t, addr, cfg) // what a URL cannot say
	}
	return lock.Open(t.Context(), fmt.Sprintf("redis://%s/?ttl=%v&token_base=%d&owner=%s", addr, cfg.TTL, cfg.TokenBase, escapeQuery(cfg.Owner)))
}

func byClient(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	c := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { c.Close() })
	return redislock.New(c, redislock.Config{Config: cfg})
}

func (s *suite) harness() *conformance.Harness {
	return &conformance.Harness{
		TTL:      suiteTTL,
		Promises: lock.Fencing | lock.Leased,
		Open: func(t *testing.T) lock.Locker {
			l, err := s.openLocker(t, lock.Config{TTL: suiteTTL})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		OpenConfig: s.openLocker,
		Revoke:     s.revoke,
		Isolate: func(_ *testing.T, l lock.Locker) func() {
			p := s.proxy(l)
			p.Stall()
			return p.Heal
		},
		SlowReplies: func(_ *testing.T, l lock.Locker, d time.Duration) func() {
			p := s.proxy(l)
			p.Delay(0, d)
			return p.Heal
		},
		LoseReply: func(_ *testing.T, l lock.Locker) { s.proxy(l).LoseReply() },
		Restart: func(*testing.T) {
			s.server.Kill()
			s.server.Start()
		},
		Left: func(t *testing.T, key string) time.Duration {
			ms, _ := do(t, s.direct, "PTTL", "holdfast:{"+key+"}").(int64)
			return time.Duration(ms) * time.Millisecond
		},
		Skip: make(map[string]string),
	}
}

func (s *suite) openLocker(t *testing.T, cfg lock.Config) (lock.Locker, error) {
	if cfg.TTL == 0 {
		cfg.TTL = suiteTTL
	}
	if s.unproxied {
		return s.open(t, s.server.Addr(), cfg)
	}
	p, err := conformance.NewProxy(s.server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	l, err := s.open(t, p.Addr(), cfg)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxies[l] = p
	return l, nil
}

func (s *suite) proxy(l lock.Locker) *conformance.Proxy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.proxies[l]
}

// revoke deletes the lock as an operator would, who finds it by its key.
func (s *suite) revoke(t *testing.T, key string) {
	t.Helper()
	if n := do(t, s.direct, "DEL", "holdfast:{"+key+"}"); n != int64(1) {
		t.Fatalf("the lock on %q is not where the documentation says", key)
	}
}

func escapeQuery(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		fmt.Fprintf(&b, "%%%02X", c)
	}
	return b.String()
}
