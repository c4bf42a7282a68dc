package redislock_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/redislock"
)

// proxied returns a client that goes through a proxy, and retries, as is
// go-redis's default, and one that goes to the server.
func proxied(t *testing.T) (*conformance.Proxy, *redis.Client, *redis.Client) {
	t.Helper()
	s := testserver.Redis(t)
	p, err := conformance.NewProxy(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, dial(t, p.Addr(), func(o *redis.Options) { o.MaxRetries = 3 }), dial(t, s.Addr())
}

func ofScript(request []byte) bool { return bytes.Contains(request, []byte("evalsha")) }

// The client's own retries must not run: the second copy of a request can be told
// "held" while the first, on a connection that died, takes the lock after it.
func TestLostReplies(t *testing.T) {
	p, c, direct := proxied(t)
	d := driveOn(t, c)
	release(t, acquire(t, d, ask("warm"))) // the scripts are known

	unknown := func(what string, f func() error) {
		t.Helper()
		do(t, direct, "config", "resetstat")
		struck := p.LoseReplyFunc(ofScript)
		err := f()
		<-struck
		if err == nil || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrLost) {
			t.Errorf("%s without an answer: %v, want an error that says nothing", what, err)
		}
		if n := calls(t, direct, "evalsha"); n != 1 {
			t.Errorf("%s: the script ran %d times, want once", what, n)
		}
	}
	r := ask("k")
	unknown("Acquire", func() error { _, err := d.Acquire(t.Context(), r); return err })
	if v := do(t, direct, "get", "holdfast:{k}").(string); v[:32] != r.ID {
		t.Errorf("the lock is %q, want it taken by %s", v, r.ID)
	}
	g := acquire(t, d, r)
	if v := do(t, direct, "get", "holdfast:{k}:token"); v != fmt.Sprint(token(g)) {
		t.Errorf("asked again, the token is %d; the one that was minted is %v", token(g), v)
	}
	unknown("Renew", func() error { return d.Renew(t.Context(), []driver.Lease{g.Lease()})[0] })
	if errs := d.Renew(t.Context(), []driver.Lease{g.Lease()}); errs[0] != nil {
		t.Errorf("Renew: %v", errs[0])
	}
	unknown("Release", func() error { return g.Release(t.Context()) })
	matches(t, "Release again", g.Release(t.Context()), lock.ErrLost)
	r = ask("k")
	acquire(t, d, r)
	unknown("Abandon", func() error { return d.Abandon(t.Context(), r) })
	if err := d.Abandon(t.Context(), r); err != nil {
		t.Errorf("Abandon again: %v", err)
	}
	unknown("Inspect", func() error { _, err := d.Inspect(t.Context(), "k"); return err })
}

// With the engine: whatever is lost, nothing is left behind, and a release that was
// carried out is no loss.
func TestLostRepliesLeaveNothing(t *testing.T) {
	p, c, direct := proxied(t)
	l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}})
	other := lockerOn(t, direct, redislock.Config{Config: lock.Config{TTL: ttl}})
	for _, lose := range []func(func([]byte) bool) <-chan struct{}{p.LoseReplyFunc, p.LoseRequestFunc} {
		for range 10 {
			struck := lose(ofScript)
			_, err := l.TryAcquire(t.Context(), "k")
			<-struck
			matches(t, "TryAcquire", err, lock.ErrUnavailable)

			h, err := other.Acquire(t.Context(), "k", lock.Wait(10*time.Second))
			if err != nil {
				t.Fatalf("a ghost keeps the lock: %v", err)
			}
			if err := h.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}

			h, err = l.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			struck = lose(ofScript)
			err = h.Release(t.Context())
			<-struck
			if err != nil {
				t.Errorf("Release: %v", err)
			}
		}
	}
}

// What proves a lease is the moment before its request was sent.
func TestProofIsFromBeforeTheRequest(t *testing.T) {
	p, c, _ := proxied(t)
	d := driveOn(t, c)
	release(t, acquire(t, d, ask("warm")))
	p.Delay(0, time.Second)
	before := driver.Now()
	g := acquire(t, d, ask("k"))
	if after := g.Proved().Sub(before); after < 0 || after > 900*time.Millisecond {
		t.Errorf("Proved is %v after the request, whose answer took a second", after)
	}
	if term := g.Lease().Term(); term != ttl {
		t.Errorf("Term %v, want %v", term, ttl)
	}
}

// The application, or a crowd that acquires, may use up the client's connections: that
// bounds an attempt as everything does, and does not keep renewals waiting.
func TestNoConnectionIsFree(t *testing.T) {
	c := dial(t, testserver.Redis(t).Addr(), func(o *redis.Options) { o.PoolSize, o.PoolTimeout = 1, time.Minute })
	d, err := redislock.NewDriver(c, redislock.Config{Config: lock.Config{TTL: 3 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	g := acquire(t, d, ask("k"))
	conn := c.Conn()
	defer conn.Close()
	if err := conn.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := d.Acquire(t.Context(), ask("other")); err == nil || errors.Is(err, lock.ErrHeld) {
		t.Errorf("Acquire: %v, want an error that says nothing", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Acquire came back after %v, want 500ms", took)
	}
	if err := d.Renew(t.Context(), []driver.Lease{g.Lease()})[0]; err != nil {
		t.Errorf("Renew: %v", err)
	}
}

// A mute server holds a request no longer than a sixth of the TTL, although the
// client would wait for five seconds and does not look at contexts.
func TestMuteServer(t *testing.T) {
	p, c, _ := proxied(t)
	d, err := redislock.NewDriver(c, redislock.Config{Config: lock.Config{TTL: 3 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	r := ask("k")
	g := acquire(t, d, r)
	p.Stall()
	for what, f := range map[string]func() error{
		"Acquire": func() error { _, err := d.Acquire(t.Context(), ask("k")); return err },
		"Renew":   func() error { return d.Renew(t.Context(), []driver.Lease{g.Lease()})[0] },
		"Release": func() error { return g.Release(t.Context()) },
	} {
		began := time.Now()
		if err := f(); err == nil || errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrLost) {
			t.Errorf("%s: %v, want an error that says nothing", what, err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("%s came back after %v, want 500ms", what, took)
		}
	}
	p.Heal()
	if err := d.Abandon(t.Context(), r); err != nil {
		t.Errorf("Abandon: %v", err)
	}
}
