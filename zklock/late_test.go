package zklock_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// The request that makes a node is held up between a follower and the leader. Meanwhile its
// session connects to another server, is told that there is no such node, and makes one. The
// first request, when it arrives, makes nothing any more.
func TestRequestArrivesLate(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	var through atomic.Int64 // the only server that can be dialled
	var conn atomic.Value
	d := new(net.Dialer)
	connect := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if addr != e.addr(int(through.Load())) {
			return nil, errors.New("not this one")
		}
		c, err := d.DialContext(ctx, network, addr)
		if err == nil {
			conn.Store(c)
		}
		return c, err
	}
	for _, givenUp := range []bool{false, true, false, true} {
		e.look()
		through.Store(int64(e.follower))
		l := lockerOn(t, zklock.Config{Dial: connect}, e.addr(0), e.addr(1), e.addr(2))
		direct := dial(t, e.addr(e.leader))
		release(t, acquire(t, l, "late"))
		e.link().StallRequests()
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan lock.Handle, 1)
		go func() {
			h, err := l.Acquire(ctx, "late")
			if (err == nil) == givenUp {
				t.Errorf("given up: %v, and Acquire: %v", givenUp, err)
			}
			got <- h
		}()
		time.Sleep(100 * time.Millisecond) // the follower has it now: only its leader could tell
		if givenUp {
			cancel()
		}
		through.Store(int64(e.third()))
		_ = conn.Load().(net.Conn).Close()
		h := <-got
		if givenUp {
			time.Sleep(ttl / 4) // it is abandoned
		}
		want := 0
		if h != nil {
			want = 1
		}
		if names := inLine(t, direct, "late"); len(names) != want {
			t.Errorf("in line are %q, want %d", names, want)
		}
		e.link().Heal()
		for end := time.Now().Add(ttl / 2); time.Now().Before(end); time.Sleep(ttl / 40) {
			if names := inLine(t, direct, "late"); len(names) != want {
				t.Fatalf("what came late: in line are %q, want %d", names, want)
			}
		}
		if h != nil {
			release(t, h)
		}
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
