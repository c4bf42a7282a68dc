package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/zklock"
)

// driverOn returns a driver without an engine, which the test closes.
func driverOn(t *testing.T, cfg zklock.Config, servers ...string) driver.Driver {
	t.Helper()
	cfg.TTL = ttl
	d, err := zklock.NewDriver(servers, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), ttl)
		defer cancel()
		_ = d.Close(ctx)
	})
	return d
}

func request(key string, wait bool) *driver.Request {
	return &driver.Request{
		Key: key, ID: fmt.Sprintf("%016x%016x", rand.Uint64(), rand.Uint64()),
		Owner: "me", TTL: ttl, Wait: wait, Busy: func() {},
	}
}

// An attempt is abandoned while it is made, at any moment: whatever it comes to, nothing is
// left of it in line or on the books.
func TestAbandonedMeanwhile(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	d := driverOn(t, zklock.Config{Tick: tick}, server.Addr())
	direct := dial(t, server.Addr())
	warm, err := d.Acquire(t.Context(), request("abandoned", false))
	if err != nil {
		t.Fatal(err)
	}
	if err := warm.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	granted := 0
	for i := range 2000 {
		r := request("abandoned", true)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan driver.Grant)
		go func() {
			g, err := d.Acquire(ctx, r)
			if err != nil && !errors.Is(err, context.Canceled) && !driver.LeavesNothing(err) {
				t.Errorf("Acquire: %v", err)
			}
			done <- g
		}()
		time.Sleep(rand.N(400 * time.Microsecond))
		cancel()
		if err := d.Abandon(t.Context(), r); err != nil {
			t.Errorf("Abandon: %v", err)
		}
		if g := <-done; g != nil {
			granted++
			if err := g.Release(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
				t.Errorf("Release: %v", err)
			}
		} else if err := d.Abandon(t.Context(), r); err != nil {
			t.Errorf("Abandon: %v", err)
		}
		if requests, paths := zklock.Booked(d); requests != 0 || paths != 0 {
			t.Fatalf("round %d: on the books are %d requests, and %d bytes of paths", i, requests, paths)
		}
	}
	if names := inLine(t, direct, "abandoned"); len(names) != 0 {
		t.Errorf("in line are %q", names)
	}
	t.Logf("%d of 2000 were granted", granted)
}

// The request that makes a node is lost, and there is one under the name that it would have: of
// another session, as its name does not say. Whoever it is may think that it holds the lock, so
// it is not taken for the attempt's own; and when it has gone, nothing is left of the attempt.
func TestNodeOfAnotherSession(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	p := proxied(t, server.Addr())
	d := driverOn(t, zklock.Config{Tick: tick}, p.Addr())
	direct := dial(t, server.Addr())
	warm, err := d.Acquire(t.Context(), request("planted", false))
	if err != nil {
		t.Fatal(err)
	}
	if err := warm.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, wait := range []bool{false, true} {
		r := request("planted", wait)
		planted := "/holdfast/lock/planted/" + zklock.MemberName(r.ID, onlySession(t, direct), 7)
		if _, err := direct.Create(planted, nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
			t.Fatal(err)
		}
		struck := p.LoseRequestFunc(isRequest(opMulti))
		g, err := d.Acquire(t.Context(), r)
		<-struck
		switch {
		case err == nil:
			token, _ := g.Token()
			t.Fatalf("waits: %v: the node of another session was granted, with the token %d", wait, token)
		case !strings.Contains(err.Error(), planted), errors.Is(err, lock.ErrHeld), driver.LeavesNothing(err):
			t.Errorf("waits: %v: %v, want an error that names %s, and leaves open what there is of the attempt", wait, err, planted)
		}
		if err := d.Abandon(t.Context(), r); err == nil {
			t.Errorf("waits: %v: it was abandoned, and nobody knows yet of what", wait)
		}
		if names := inLine(t, direct, "planted"); len(names) != 1 {
			t.Errorf("waits: %v: in line are %q, want the other session's alone", wait, names)
		}
		if err := direct.Delete(planted, -1); err != nil {
			t.Fatal(err)
		}
		if err := d.Abandon(t.Context(), r); err != nil {
			t.Errorf("waits: %v: Abandon, after the other's node has gone: %v", wait, err)
		}
		if requests, paths := zklock.Booked(d); requests != 0 || paths != 0 {
			t.Errorf("waits: %v: on the books are %d requests, and %d bytes of paths", wait, requests, paths)
		}
	}
}

// onlySession returns the ID of the one session that is open.
func onlySession(t *testing.T, c *zk.Conn) int64 {
	t.Helper()
	names, _, err := c.Children("/holdfast/session")
	if err != nil || len(names) != 1 {
		t.Fatalf("the sessions are %q, %v; want one", names, err)
	}
	id, err := strconv.ParseUint(names[0], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return int64(id)
}

// A heartbeat after a pause, when all that is known is too old to prove anything, takes
// longer than one try may, if the servers' ticks are long: the next tries go on with it.
func TestHeartbeatAfterPause(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	d := driverOn(t, zklock.Config{Tick: ttl / 4}, server.Addr()) // as a TTL of 12 s has with servers that are not told otherwise
	g, err := d.Acquire(t.Context(), request("pause", false))
	if err != nil {
		t.Fatal(err)
	}
	limit := g.Lease().Term() / 6 // that the engine gives
	for range 3 {
		zklock.Age(g.Lease())
		began := time.Now()
		for {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			err := d.Renew(ctx, []driver.Lease{g.Lease()})[0]
			cancel()
			if err == nil {
				break
			}
			if time.Since(began) > 4*limit {
				t.Fatalf("after %v: %v", time.Since(began), err)
			}
		}
		t.Logf("proved after %v, in tries of %v", time.Since(began), limit)
	}
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// What a lock that was deleted had booked is free again, though the engine releases it no more;
// and once only, if it does.
func TestDeletedIsOffTheBooks(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	d := driverOn(t, zklock.Config{Tick: tick}, server.Addr())
	direct := dial(t, server.Addr())
	for _, watched := range []bool{true, false} {
		g, err := d.Acquire(t.Context(), request("deleted", false))
		if err != nil {
			t.Fatal(err)
		}
		_, before := zklock.Booked(d)
		path := "/holdfast/lock/deleted/" + inLine(t, direct, "deleted")[0]
		renew := func() {
			if err := d.Renew(t.Context(), []driver.Lease{g.Lease()})[0]; err != nil {
				t.Fatal(err)
			}
		}
		if watched {
			renew()
			until(t, "the node is watched", func() bool { return zklock.Watched(g.Lease(), path) })
		}
		if err := direct.Delete(path, -1); err != nil {
			t.Fatal(err)
		}
		if !watched {
			renew()
		}
		until(t, "its path is off the books", func() bool { _, paths := zklock.Booked(d); return paths < before })
		if err := g.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		if requests, paths := zklock.Booked(d); requests != 0 || paths != 0 {
			t.Errorf("watched %v: on the books are %d requests, and %d bytes of paths", watched, requests, paths)
		}
	}
}

// A server that has gone mute is left, however long the TTL: no heartbeat is waited for as long
// as the engine waits for it.
func TestMuteServerIsLeftInTime(t *testing.T) {
	t.Parallel()
	const long = time.Minute
	server := testserver.ZooKeeper(t, testserver.Args("maxSessionTimeout=60000"))
	p := proxied(t, server.Addr())
	var dials atomic.Int64
	d, err := zklock.NewDriver([]string{p.Addr()}, zklock.Config{
		Config: lock.Config{TTL: long}, Tick: tick,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, network, addr)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Heal()
		ctx, cancel := context.WithTimeout(context.Background(), ttl)
		defer cancel()
		_ = d.Close(ctx)
	})
	g, err := d.Acquire(t.Context(), request("mute", false))
	if err != nil {
		t.Fatal(err)
	}
	before := dials.Load()
	p.Stall()
	ctx, cancel := context.WithTimeout(t.Context(), min(g.Lease().Term()/6, 5*time.Second)) // as the engine does
	defer cancel()
	if err := d.Renew(ctx, []driver.Lease{g.Lease()})[0]; err == nil {
		t.Fatal("a mute server renewed a session")
	}
	until(t, "another dial", func() bool { return dials.Load() > before })
}
