package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// cluster is three servers that replicate over proxies, one for each direction between two.
type cluster struct {
	servers []*testserver.Server
	between map[[2]int]*conformance.Proxy
}

// clusters bounds how many there are at once: on a machine that is busy with too many, their
// members elect new leaders, and requests take longer than a request may.
var clusters = make(chan struct{}, 2)

func newCluster(t *testing.T, opts ...testserver.Option) *cluster {
	t.Helper()
	clusters <- struct{}{}
	t.Cleanup(func() { <-clusters })
	c := &cluster{between: make(map[[2]int]*conformance.Proxy)}
	c.servers = testserver.EtcdCluster(t, 3, func(from, to int, addr string) string {
		p := newProxy(t, addr)
		c.between[[2]int{from, to}] = p
		return p.Addr()
	}, opts...)
	return c
}

// cutOff takes a member away from the others, but not from its clients.
func (c *cluster) cutOff(member int) (heal func()) {
	var cut []*conformance.Proxy
	for pair, p := range c.between {
		if pair[0] == member || pair[1] == member {
			p.Stall()
			cut = append(cut, p)
		}
	}
	return func() {
		for _, p := range cut {
			p.Heal()
		}
	}
}

// leader returns who leads.
func (c *cluster) leader(t *testing.T) int {
	t.Helper()
	leader := -1
	until(t, func() bool {
		for i, s := range c.servers {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			status, err := dial(t, s.Addr()).Status(ctx, s.Addr())
			cancel()
			if err == nil && status.Leader != 0 && status.Leader == status.Header.MemberId {
				leader = i
				return true
			}
		}
		return false
	})
	return leader
}

// url returns that of a Locker that knows these members.
func (c *cluster) url(query string, members ...int) string {
	var addrs []string
	for _, i := range members {
		addrs = append(addrs, c.servers[i].Addr())
	}
	return "etcd://" + strings.Join(addrs, ",") + "/?" + query
}

// TestConformanceOnCluster runs the suite on Lockers that know all members of a cluster, each by
// a network of its own. What is restarted is the leader, of a cluster that the case has to itself.
// All others share one, under prefixes of their own.
func TestConformanceOnCluster(t *testing.T) {
	// Nothing happens to the common one. Its members wait longer for a leader that has not run
	// for a second than for one that is gone: while they elect another, requests fail.
	common := newCluster(t, testserver.Args("--heartbeat-interval", "200", "--election-timeout", "2000"))
	for _, c := range conformance.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			members := common
			if c.Needs("Restart") {
				members = newCluster(t, testserver.Durable())
			}
			c.Run(t, newClusterSuite(t, members).harness())
		})
	}
}

type clusterSuite struct {
	view
	cluster *cluster

	mu      sync.Mutex
	proxies map[lock.Locker][]*conformance.Proxy
}

func newClusterSuite(t *testing.T, c *cluster) *clusterSuite {
	return &clusterSuite{
		view: view{
			direct: dial(t, c.servers[0].Addr(), func(cfg *clientv3.Config) { cfg.Endpoints = c.addrs() }),
			prefix: "/" + t.Name() + "/",
		},
		cluster: c,
		proxies: make(map[lock.Locker][]*conformance.Proxy),
	}
}

func (c *cluster) addrs() []string {
	var all []string
	for _, s := range c.servers {
		all = append(all, s.Addr())
	}
	return all
}

func (s *clusterSuite) openConfig(t *testing.T, cfg lock.Config) (lock.Locker, error) {
	if cfg.TTL == 0 {
		cfg.TTL = suiteTTL
	}
	var proxies []*conformance.Proxy
	var addrs []string
	for _, addr := range s.cluster.addrs() {
		p := newProxy(t, addr)
		proxies, addrs = append(proxies, p), append(addrs, p.Addr())
	}
	l, err := byURLUnder(t, s.prefix, strings.Join(addrs, ","), cfg)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proxies[l] = proxies
	return l, nil
}

// each does something to all proxies of a Locker, and returns what heals them.
func (s *clusterSuite) each(l lock.Locker, f func(*conformance.Proxy)) (heal func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	proxies := s.proxies[l]
	for _, p := range proxies {
		f(p)
	}
	return func() {
		for _, p := range proxies {
			p.Heal()
		}
	}
}

func (s *clusterSuite) harness() *conformance.Harness {
	return &conformance.Harness{
		TTL:        suiteTTL,
		OpenConfig: s.openConfig,
		Open: func(t *testing.T) lock.Locker {
			l, err := s.openConfig(t, lock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		Promises: lock.Fencing | lock.FIFO | lock.SharedMode | lock.Leased,
		Revoke:   s.revoke,
		Left:     s.left,
		Restart: func(t *testing.T) {
			leader := s.cluster.servers[s.cluster.leader(t)]
			leader.Kill()
			leader.Start()
		},
		Isolate: func(_ *testing.T, l lock.Locker) func() { return s.each(l, (*conformance.Proxy).Stall) },
		SlowReplies: func(_ *testing.T, l lock.Locker, d time.Duration) func() {
			return s.each(l, func(p *conformance.Proxy) { p.Delay(0, d) })
		},
		Skip: map[string]string{"LoseReply": "which of the members is asked next is not known: a single server has it"},
	}
}

// The death of the leader loses neither a lock nor a place in the queue.
func TestLeaderKilled(t *testing.T) {
	c := newCluster(t, testserver.Durable())
	open := func() lock.Locker { return openURL(t, c.url("ttl=10s", 0, 1, 2)) }
	holder, waiter, other := open(), open(), open()
	for round := range 2 {
		h := must(t)(holder.Acquire(t.Context(), "one"))
		next := wait(t, waiter, "one")
		until(t, func() bool { return waiters(t, other, "one") == 1 })
		leader := c.servers[c.leader(t)]
		leader.Kill()
		until(t, func() bool {
			_, err := other.TryAcquire(t.Context(), "one")
			return errors.Is(err, lock.ErrHeld)
		})
		time.Sleep(5 * time.Second) // and renewals come through
		if err := h.Err(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if n := waiters(t, other, "one"); n != 1 {
			t.Errorf("round %d: %d wait, want the one who did", round, n)
		}
		release(t, h)
		h = next()
		before, _ := h.Token()
		release(t, h)
		leader.Start()
		h = must(t)(other.Acquire(t.Context(), "one", lock.Wait(20*time.Second)))
		if token, _ := h.Token(); token <= before {
			t.Errorf("round %d: the token %d came after %d", round, token, before)
		}
		release(t, h)
	}
}

// Who holds a lock by way of a member that is cut off from the others loses it before another
// gets it by way of them, and who waits there gets none that another has.
func TestMemberCutOff(t *testing.T) {
	for _, leads := range []bool{false, true} {
		t.Run(fmt.Sprint("leads=", leads), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, testserver.Durable())
			member := c.leader(t)
			if !leads {
				member = (member + 1) % 3
			}
			there := func() lock.Locker { return openURL(t, c.url("ttl=4s", member)) }
			elsewhere := openURL(t, c.url("ttl=4s", (member+1)%3, (member+2)%3))
			holder, waiter := there(), there()
			held := must(t)(holder.Acquire(t.Context(), "held"))
			waited := must(t)(elsewhere.Acquire(t.Context(), "waited"))
			late := wait(t, waiter, "waited")
			until(t, func() bool { return waiters(t, elsewhere, "waited") == 1 })

			heal := c.cutOff(member)
			next := wait(t, elsewhere, "held")()
			select {
			case <-held.Lost():
			default:
				t.Error("another was let in while Lost was open")
			}
			release(t, next)

			// In its place, the one that waited there would be next.
			release(t, waited)
			second := must(t)(elsewhere.Acquire(t.Context(), "waited", lock.Wait(30*time.Second)))
			before, _ := second.Token()
			time.Sleep(time.Second)
			heal()
			time.Sleep(2 * time.Second)
			if err := second.Err(); err != nil {
				t.Errorf("the lock of one whose members are the most: %v", err)
			}
			release(t, second)
			got := late()
			if token, _ := got.Token(); token <= before {
				t.Errorf("the token %d came after %d", token, before)
			}
			release(t, got)
			matches(t, "Release of what was lost", held.Release(t.Context()), lock.ErrLost)
			release(t, must(t)(holder.Acquire(t.Context(), "held", lock.Wait(20*time.Second))))
		})
	}
}
