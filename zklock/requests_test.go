package zklock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// meter counts what Lockers ask the servers for, besides what keeps their sessions alive: pings,
// and writes to the sessions' nodes.
type meter struct{ n atomic.Int64 }

func (m *meter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &metered{Conn: conn, m: m}, nil
}

// reading returns what was counted since the last reading.
func (m *meter) reading() int { return int(m.n.Swap(0)) }

// metered is a connection whose requests are counted.
type metered struct {
	net.Conn
	m *meter

	mu      sync.Mutex
	greeted bool   // the first request, which opens the session or resumes it, is written
	begun   []byte // of the next request
}

func (c *metered) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = append(c.begun, b[:n]...)
	for len(c.begun) >= 4 {
		end := 4 + int(binary.BigEndian.Uint32(c.begun))
		if len(c.begun) < end {
			break
		}
		if c.greeted {
			c.m.count(binary.BigEndian.Uint32(c.begun[8:]))
		}
		c.greeted, c.begun = true, c.begun[end:]
	}
	return n, err
}

func (m *meter) count(code uint32) {
	const opPing = 11
	if code != opPing && code != opSetData {
		m.n.Add(1)
	}
}

// Those who wait ask for next to nothing, and of a release one of them is told, and looks.
func TestWaitersDoNotPoll(t *testing.T) {
	t.Parallel()
	const waiters = 10
	server := testserver.ZooKeeper(t)
	direct := dial(t, server.Addr())
	holder := lockerOn(t, zklock.Config{}, server.Addr())
	h := acquire(t, holder, "line")
	var m meter
	got := make(chan lock.Handle, waiters)
	for i := range waiters {
		l := lockerOn(t, zklock.Config{Dial: m.dial}, server.Addr())
		release(t, acquire(t, l, "warm-up"))
		go func() {
			h, err := l.Acquire(t.Context(), "line")
			if err != nil {
				t.Errorf("a waiter: %v", err)
			}
			got <- h
		}()
		until(t, "one more in line", func() bool { return len(inLine(t, direct, "line")) == i+2 })
	}
	until(t, "the watches of all", func() bool { return monitor(t, server.Addr(), "zk_watch_count") >= waiters })

	m.reading()
	began := time.Now()
	// In case a watch was lost, each looks once in a TTL.
	looks := func() int { return waiters * int(1+time.Since(began)/ttl) }
	time.Sleep(2 * time.Second)
	if n := m.reading(); n > looks() {
		t.Errorf("%d who wait made %d requests in %v, want %d at most", waiters, n, time.Since(began), looks())
	}
	for range waiters {
		release(t, h)
		if h = <-got; h == nil {
			return
		}
	}
	release(t, h)
	// To be granted the lock takes a look, and to give it back a removal.
	if n, most := m.reading(), 2*waiters+looks(); n > most {
		t.Errorf("%d hand-overs in a line of %d cost %d requests, want %d at most", waiters, waiters, n, most)
	}
}

// A waiter hears of a release, and does not only find out when it looks by itself, a TTL after it
// has begun to wait.
func TestWaiterHearsOfRelease(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	a, b := lockerOn(t, zklock.Config{}, server.Addr()), lockerOn(t, zklock.Config{}, server.Addr())
	release(t, acquire(t, a, "warm-up"))
	release(t, acquire(t, b, "warm-up"))
	for range 3 {
		h := acquire(t, a, "heard")
		began := time.Now()
		got := make(chan lock.Handle, 1)
		go func() {
			h, err := b.Acquire(t.Context(), "heard")
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			got <- h
		}()
		until(t, "the waiter's watch", func() bool { return monitor(t, server.Addr(), "zk_watch_count") > 0 })
		release(t, h)
		freed := time.Since(began)
		if h = <-got; h == nil {
			return
		}
		if took := time.Since(began) - freed; took > ttl/4 && freed < ttl/2 {
			t.Errorf("the waiter was granted the lock %v after the release, and %v after it had begun to wait", took, took+freed)
		}
		release(t, h)
	}
}

// A lock, a try that is refused and a wait that is given up cost a few requests each, however
// many there were before.
func TestRequestsAreFew(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	direct := dial(t, server.Addr())
	var m meter
	l := lockerOn(t, zklock.Config{Dial: m.dial}, server.Addr())
	// The server removes the lock's node, if it finds nobody in line when it looks, once a minute:
	// then it is made again.
	const remaking = 10
	cost := func(what string, times, each int, do func()) {
		t.Helper()
		m.reading()
		for range times {
			do()
		}
		until(t, "the end of what was given up", func() bool { return len(inLine(t, direct, "few")) <= 1 })
		n := m.reading()
		t.Logf("%s: %d requests for %d", what, n, times)
		if n > each*times+remaking {
			t.Errorf("%s: %d requests for %d, want %d each at most", what, n, times, each)
		}
	}
	release(t, acquire(t, l, "few"))
	cost("locks", 500, 2, func() { release(t, acquire(t, l, "few")) })

	held := acquire(t, lockerOn(t, zklock.Config{}, server.Addr()), "few")
	refused := func(wait time.Duration, want ...error) func() {
		return func() {
			_, err := l.Acquire(t.Context(), "few", lock.Wait(wait))
			if !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
				t.Fatalf("Acquire: %v, want an error that matches one of %q", err, want)
			}
		}
	}
	cost("tries that are refused", 500, 3, refused(0, lock.ErrHeld))
	// On a busy machine some end before they were told that somebody holds the lock.
	cost("waits that are given up", 100, 4, refused(10*time.Millisecond, lock.ErrHeld, lock.ErrUnavailable))
	release(t, held)
	release(t, acquire(t, l, "few"))
	if names := inLine(t, direct, "few"); len(names) != 0 {
		t.Errorf("in the end, in line are %q", names)
	}
}
