package zklock_test

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/internal/throughproxy"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// suiteTTL leaves, of its margins, more than a busy machine takes to run a timer.
const suiteTTL = ttl

// TestConformance runs the suite on one server.
func TestConformance(t *testing.T) {
	server := testserver.ZooKeeper(t)
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		if restarts(t) {
			return newSuite(t, testserver.ZooKeeper(t, testserver.Durable())).harness()
		}
		return newSuite(t, server).harness()
	})
}

// TestConformanceOfThree runs the suite on three servers: each Locker is connected to
// another one.
func TestConformanceOfThree(t *testing.T) {
	servers := testserver.ZooKeeperEnsemble(t, 3, nil)
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		if restarts(t) {
			return newSuite(t, testserver.ZooKeeperEnsemble(t, 3, nil, testserver.Durable())...).harness()
		}
		return newSuite(t, servers...).harness()
	})
}

// restarts says whether a case wants servers of its own: the others share them, and each
// has a root of its own.
func restarts(t *testing.T) bool { return strings.Contains(t.Name(), "Restart") }

// suite is some servers, and a proxy for each Locker.
type suite struct {
	*throughproxy.Lockers
	servers []*testserver.Server
	root    string
	opened  atomic.Int64
}

var roots atomic.Int64

func newSuite(t *testing.T, servers ...*testserver.Server) *suite {
	s := &suite{servers: servers, root: fmt.Sprintf("/suite/%d", roots.Add(1))}
	s.Lockers = &throughproxy.Lockers{Addr: s.next, Open: s.open, TTL: suiteTTL}
	return s
}

// next says to which server the next Locker is connected.
func (s *suite) next() string {
	return s.servers[int(s.opened.Add(1)-1)%len(s.servers)].Addr()
}

func (s *suite) harness() *conformance.Harness {
	h := s.Harness()
	h.Term = suiteTTL - suiteTTL/4 - tick/2
	h.Promises = lock.Fencing | lock.FIFO | lock.SharedMode | lock.Leased
	h.Revoke = s.revoke
	h.Restart = func(*testing.T) {
		for _, server := range s.servers {
			server.Kill()
		}
		testserver.StartAll(s.servers...)
	}
	h.Left = s.left
	return h
}

// open opens a Locker, by a URL if that can say it all.
func (s *suite) open(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	if _, err := cfg.WithDefaults(); err != nil || cfg.Observe != nil || cfg.TTL <= 0 { // what a URL cannot say
		return zklock.New([]string{addr}, zklock.Config{Config: cfg, Root: s.root, Tick: tick})
	}
	return lock.Open(t.Context(), fmt.Sprintf("zk://%s%s?ttl=%v&tick=%v&token_base=%d&owner=%s",
		addr, s.root, cfg.TTL, tick, cfg.TokenBase, url.QueryEscape(cfg.Owner)))
}

// revoke deletes the lock as an operator would, who finds it by its key.
func (s *suite) revoke(t *testing.T, key string) {
	t.Helper()
	c := dial(t, s.servers[0].Addr())
	path := s.root + "/lock/" + key
	if _, err := c.Sync(path); err != nil {
		t.Fatal(err)
	}
	names, _, err := c.Children(path)
	if err != nil || len(names) != 1 {
		t.Fatalf("the lock on %q is not where the documentation says: %q, %v", key, names, err)
	}
	if err := c.Delete(path+"/"+names[0], -1); err != nil {
		t.Fatal(err)
	}
}

var expiry = regexp.MustCompile(`expire at \w+ (\w+ \d+ \d+:\d+:\d+) (\w+) (\d+):((?:\n\t0x[0-9a-f]+)+)`)

// left asks the leader when it will end the session that holds the lock. It tells
// seconds, and cuts them.
func (s *suite) left(t *testing.T, key string) time.Duration {
	t.Helper()
	c := dial(t, s.servers[0].Addr())
	path := s.root + "/lock/" + key
	names, _, err := c.Children(path)
	if err != nil || len(names) != 1 {
		return 0
	}
	_, stat, err := c.Get(path + "/" + names[0])
	if err != nil {
		return 0
	}
	session := fmt.Sprintf("\n\t0x%x", uint64(stat.EphemeralOwner))
	for _, server := range s.servers {
		dump, err := testserver.ZooKeeperWord(t.Context(), server.Addr(), "dump")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range expiry.FindAllStringSubmatch(dump, -1) {
			if !strings.Contains(m[4]+"\n", session+"\n") {
				continue
			}
			at, err := time.Parse("Jan 2 15:04:05 MST 2006", m[1]+" "+m[2]+" "+m[3])
			if err != nil {
				t.Fatal(err)
			}
			return time.Until(at) + time.Second
		}
	}
	return 0
}
