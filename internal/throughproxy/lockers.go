// Package throughproxy gives tests Lockers that each reach a server through a proxy of their
// own, and what of a conformance harness follows from that.
package throughproxy

import (
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/lock"
)

// Lockers opens Lockers, and knows the proxy of each.
type Lockers struct {
	// Addr says where the server of the next one is.
	Addr func() string

	// Open opens one whose server is at addr.
	Open func(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error)

	// TTL is that of those whose configuration has none.
	TTL time.Duration

	// Direct has them reach the server itself: then there are no faults to be had.
	Direct bool

	mu      sync.Mutex
	proxies map[lock.Locker]*conformance.Proxy
}

// OpenConfig opens a Locker behind a proxy that lives as long as the test.
func (ls *Lockers) OpenConfig(t *testing.T, cfg lock.Config) (lock.Locker, error) {
	if cfg.TTL == 0 {
		cfg.TTL = ls.TTL
	}
	if ls.Direct {
		return ls.Open(t, ls.Addr(), cfg)
	}
	p, err := conformance.NewProxy(ls.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	l, err := ls.Open(t, p.Addr(), cfg)
	if err != nil {
		return nil, err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.proxies == nil {
		ls.proxies = make(map[lock.Locker]*conformance.Proxy)
	}
	ls.proxies[l] = p
	return l, nil
}

// Proxy returns that of a Locker of OpenConfig.
func (ls *Lockers) Proxy(l lock.Locker) *conformance.Proxy {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.proxies[l]
}

// Harness returns one with all that proxies can do. What is the server's own is to be
// added.
func (ls *Lockers) Harness() *conformance.Harness {
	h := &conformance.Harness{
		TTL:        ls.TTL,
		OpenConfig: ls.OpenConfig,
		Open: func(t *testing.T) lock.Locker {
			l, err := ls.OpenConfig(t, lock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		Skip: make(map[string]string),
	}
	if ls.Direct {
		for _, fault := range []string{"Isolate", "SlowReplies", "LoseReply"} {
			h.Skip[fault] = "there is no proxy here: another run has them"
		}
		return h
	}
	h.Isolate = func(_ *testing.T, l lock.Locker) func() {
		p := ls.Proxy(l)
		p.Stall()
		return p.Heal
	}
	h.SlowReplies = func(_ *testing.T, l lock.Locker, d time.Duration) func() {
		p := ls.Proxy(l)
		p.Delay(0, d)
		return p.Heal
	}
	h.LoseReply = func(_ *testing.T, l lock.Locker) { ls.Proxy(l).LoseReply() }
	return h
}
