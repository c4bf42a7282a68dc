package zklock_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// ensemble is three servers with a proxy on each way from a follower to a leader.
type ensemble struct {
	*testing.T
	servers  []*testserver.Server
	proxies  map[[2]int]*conformance.Proxy
	leader   int
	follower int // one of them
}

func newEnsemble(t *testing.T) *ensemble {
	e := &ensemble{T: t, proxies: make(map[[2]int]*conformance.Proxy)}
	e.servers = testserver.ZooKeeperEnsemble(t, 3, func(from, to int, addr string) string {
		p, err := conformance.NewProxy(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		e.proxies[[2]int{from, to}] = p
		return p.Addr()
	})
	e.look()
	return e
}

// look finds out who leads, once all serve.
func (e *ensemble) look() {
	until(e, "a leader and its followers", func() bool {
		e.leader, e.follower = -1, -1
		for i, s := range e.servers {
			switch testserver.ZooKeeperMode(e.Context(), s.Addr()) {
			case "leader":
				e.leader = i
			case "follower":
				e.follower = i
			default:
				return false
			}
		}
		return e.leader >= 0
	})
}

// link is the follower's way to its leader.
func (e *ensemble) link() *conformance.Proxy { return e.proxies[[2]int{e.follower, e.leader}] }

func (e *ensemble) addr(i int) string { return e.servers[i].Addr() }

// third is the one that is neither.
func (e *ensemble) third() int { return 3 - e.leader - e.follower }

// watchNode returns a channel that tells when a node was deleted, as the server at addr has it.
func watchNode(t testing.TB, c *zk.Conn, path string) <-chan time.Time {
	t.Helper()
	_, _, events, err := c.GetW(path)
	if err != nil {
		t.Fatal(err)
	}
	gone := make(chan time.Time, 1)
	go func() {
		if ev := <-events; ev.Type == zk.EventNodeDeleted {
			gone <- time.Now()
		}
	}()
	return gone
}

// nodeOf returns the only node in line for a key.
func nodeOf(t testing.TB, c *zk.Conn, root, key string) string {
	t.Helper()
	dir := root + "/lock/" + key
	if _, err := c.Sync(dir); err != nil {
		t.Fatal(err)
	}
	names, _, err := c.Children(dir)
	if err != nil || len(names) != 1 {
		t.Fatalf("in line for %q are %q (%v), want one", key, names, err)
	}
	return dir + "/" + names[0]
}

// A follower that is cut off from its leader goes on answering pings and reads. Whoever
// holds a lock through it is told of the loss before the leader lets go.
func TestCutOffFollower(t *testing.T) {
	for name, cut := range map[string]func(*conformance.Proxy){
		"for good": (*conformance.Proxy).Stall,
		"one way": func(p *conformance.Proxy) {
			if rand.N(2) == 0 {
				p.StallReplies()
			} else {
				p.StallRequests()
			}
		},
		// What was held up arrives at once, and then nothing more: a heartbeat that was
		// answered in between may have been on its way for long, with the leader none the
		// wiser of the session.
		"flapping": func(p *conformance.Proxy) {
			p.Stall()
			time.Sleep(ttl/4 + rand.N(ttl/4))
			p.Heal()
			time.Sleep(rand.N(60 * time.Millisecond))
			p.Stall()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnsemble(t)
			for range 4 {
				e.cutOff(cut)
			}
		})
	}
}

func (e *ensemble) cutOff(cut func(*conformance.Proxy)) {
	e.Helper()
	e.look()
	a := lockerOn(e, zklock.Config{}, e.addr(e.follower))
	b := lockerOn(e, zklock.Config{}, e.addr(e.leader))
	h := acquire(e, a, "cut-off")
	direct, stale := dial(e, e.addr(e.leader)), dial(e, e.addr(e.follower))
	path := nodeOf(e, direct, "/holdfast", "cut-off")
	if _, _, err := stale.Get(path); err != nil {
		e.Fatal(err)
	}
	time.Sleep(ttl/4 + rand.N(ttl/2)) // some heartbeats
	gone := watchNode(e, direct, path)
	waiting := make(chan bool, 1) // whether Lost was closed when another was granted the lock
	go func() {
		next, err := b.Acquire(e.Context(), "cut-off")
		if err != nil {
			e.Errorf("the next: %v", err)
			waiting <- false
			return
		}
		waiting <- h.Err() != nil
		_ = next.Release(context.Background())
	}()

	cut(e.link())
	began := time.Now()
	<-h.Lost()
	lost := time.Now()
	freed := <-gone
	// The follower has not heard of it.
	if there, _, err := stale.Exists(path); err != nil || !there {
		e.Logf("the follower has given up: %v, %v", there, err)
	}
	e.Logf("lost %v after the cut, freed %v later", lost.Sub(began).Round(time.Millisecond), freed.Sub(lost).Round(time.Millisecond))
	if !freed.After(lost) {
		e.Errorf("the leader had let go %v before Lost closed", lost.Sub(freed))
	}
	if !<-waiting {
		e.Error("another was granted the lock while it was not lost")
	}
	matches(e, "Err", h.Err(), lock.ErrLost)
	e.link().Heal()
	if err := a.Close(); err != nil {
		e.Error(err)
	}
}

// A Locker that knows other servers goes on through them, and loses nothing.
func TestCutOffFollowerIsLeft(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	var others atomic.Bool // may be dialled
	d := new(net.Dialer)
	a := lockerOn(t, zklock.Config{
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr != e.addr(e.follower) && !others.Load() {
				return nil, errors.New("not yet")
			}
			return d.DialContext(ctx, network, addr)
		},
	}, e.addr(0), e.addr(1), e.addr(2))
	b := lockerOn(t, zklock.Config{}, e.addr(e.leader))
	for range 3 {
		h := acquire(t, a, "left")
		others.Store(true)
		e.link().Stall()
		for end := time.Now().Add(2 * ttl); time.Now().Before(end); time.Sleep(ttl / 20) {
			if err := h.Err(); err != nil {
				t.Fatalf("with two good servers: %v", err)
			}
		}
		if _, err := b.TryAcquire(t.Context(), "left"); !errors.Is(err, lock.ErrHeld) {
			t.Fatalf("another: %v, want ErrHeld", err)
		}
		release(t, h)
		e.link().Heal()
	}
}

// A server that accepts connections and says nothing costs no lock, as long as there is
// another.
func TestMuteServerIsLeft(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	proxies := make([]*conformance.Proxy, 3)
	var addrs []string
	for i := range proxies {
		p, err := conformance.NewProxy(e.addr(i))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		proxies[i] = p
		addrs = append(addrs, p.Addr())
	}
	a := lockerOn(t, zklock.Config{}, addrs...)
	h := acquire(t, a, "mute")
	for range 2 {
		for _, mute := range proxies { // it is on one of them
			mute.Stall()
			for end := time.Now().Add(ttl); time.Now().Before(end); time.Sleep(ttl / 20) {
				if err := h.Err(); err != nil {
					t.Fatalf("with two good servers: %v", err)
				}
			}
			mute.Heal()
		}
	}
	release(t, h)
}

// When the leader dies, its followers agree on another, and sessions live on.
func TestLeaderChange(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	a := lockerOn(t, zklock.Config{}, e.addr(0), e.addr(1), e.addr(2))
	b := lockerOn(t, zklock.Config{}, e.addr(2), e.addr(1), e.addr(0))
	var last lock.Token
	for range 3 {
		e.look()
		h := acquire(t, a, "leader")
		token, _ := h.Token()
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
		e.servers[e.leader].Kill()
		// Alone, as long as the handle says so; and if not, another is let in.
		next, err := b.Acquire(t.Context(), "leader", lock.Wait(ttl*3/2))
		switch {
		case err == nil && h.Err() == nil:
			t.Error("two hold the lock")
		case err == nil:
			release(t, next)
		case !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable):
			t.Errorf("the next: %v", err)
		}
		t.Logf("the holder over the change: %v", h.Err())
		_ = h.Release(t.Context())
		e.servers[e.leader].Start()
	}
}
