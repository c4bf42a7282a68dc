package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func TestAcquireIsIdempotentByID(t *testing.T) {
	d, c := drive(t)
	r := ask("k")
	first := acquire(t, d, r)
	do(t, c, "pexpire", "holdfast:{k}", 1000)
	again := acquire(t, d, r)
	if token(first) != token(again) {
		t.Errorf("tokens %d and %d of the same request, want the same", token(first), token(again))
	}
	if left := do(t, c, "pttl", "holdfast:{k}").(int64); left < 2000 {
		t.Errorf("PTTL %d after the second answer, which promises the whole TTL", left)
	}
	busy := 0
	other := ask("k")
	other.Busy = func() { busy++ }
	_, err := d.Acquire(t.Context(), other)
	matches(t, "Acquire by another", err, lock.ErrHeld)
	if busy != 1 {
		t.Errorf("Busy was called %d times, want once", busy)
	}
	release(t, again)
	matches(t, "the other grant's Release", first.Release(t.Context()), lock.ErrLost)
	release(t, acquire(t, d, other))
}

// What can be read stays as it is, and no two keys share a name.
func TestNames(t *testing.T) {
	d, c := drive(t)
	for key, name := range map[string]string{
		"orders/42: ü \"日本\"": "holdfast:{orders/42: ü \"日本\"}",
		"{a}%":                "holdfast:{%7Ba%7D%25}",
		"%7Ba%7D%25":          "holdfast:{%257Ba%257D%2525}",
		"\n\x7f\u0085":        "holdfast:{%0A%7F%C2%85}",
		"\xff":                "holdfast:{%FF}",
		"\ufffd":              "holdfast:{\ufffd}",
		"a}:token":            "holdfast:{a%7D:token}",
	} {
		r := ask(key)
		acquire(t, d, r)
		if v, _ := do(t, c, "get", name).(string); !strings.HasPrefix(v, r.ID) {
			t.Errorf("the lock on %q is not called %q", key, name)
		}
	}
}

func TestTombstoneStopsALateAcquire(t *testing.T) {
	d, c := drive(t)
	for _, granted := range []bool{false, true} {
		r := ask("k")
		if granted {
			acquire(t, d, r)
		}
		for range 2 {
			if err := d.Abandon(t.Context(), r); err != nil {
				t.Fatalf("Abandon: %v", err)
			}
		}
		if _, err := d.Acquire(t.Context(), r); err == nil || errors.Is(err, lock.ErrHeld) {
			t.Errorf("granted=%v: a late Acquire gave %v, want that it was abandoned", granted, err)
		}
		if n := do(t, c, "exists", "holdfast:{k}"); n != int64(0) {
			t.Errorf("granted=%v: a late Acquire left a ghost", granted)
		}
		left := time.Duration(do(t, c, "pttl", "holdfast:{k}:void:"+r.ID).(int64)) * time.Millisecond
		if left > 2*ttl || left < 2*ttl-10*time.Second {
			t.Errorf("the tombstone stays for %v, want %v", left, 2*ttl)
		}
	}
	release(t, acquire(t, d, ask("k"))) // others are not kept out
}

func TestAbandonLeavesOthersAlone(t *testing.T) {
	d, _ := drive(t)
	g := acquire(t, d, ask("k"))
	if err := d.Abandon(t.Context(), ask("k")); err != nil {
		t.Fatalf("Abandon: %v", err)
	}
	release(t, g)
}

// The holder's ID is compared as a whole: neither a part of it nor a text that
// begins with it frees or renews the lock.
func TestWholeIDIsCompared(t *testing.T) {
	d, c := drive(t)
	r := ask("k")
	g := acquire(t, d, r)
	for _, id := range []string{"", r.ID[:8], r.ID[:31], r.ID + " ", r.ID + "0", strings.ToUpper(r.ID) + "x"} {
		if err := d.Abandon(t.Context(), &driver.Request{Key: "k", ID: id, TTL: ttl}); err != nil {
			t.Fatalf("Abandon: %v", err)
		}
		if n := do(t, c, "exists", "holdfast:{k}"); n != int64(1) {
			t.Fatalf("the lock of %s was freed by %q", r.ID, id)
		}
	}
	release(t, g)
	matches(t, "a second Release", g.Release(t.Context()), lock.ErrLost)
}

func TestRenewAnswersForEach(t *testing.T) {
	d, c := drive(t)
	var leases []driver.Lease
	const n = 600 // more than one script renews
	for i := range n {
		leases = append(leases, acquire(t, d, ask(fmt.Sprint("k", i))).Lease())
	}
	do(t, c, "del", "holdfast:{k1}")
	do(t, c, "set", "holdfast:{k2}", "theirs")
	do(t, c, "del", "holdfast:{k3}")
	do(t, c, "hset", "holdfast:{k3}", "f", "v")
	do(t, c, "del", "holdfast:{k599}")
	other := acquire(t, d, ask("k599"))
	for i := range n {
		do(t, c, "pexpire", fmt.Sprintf("holdfast:{k%d}", i), 5000)
	}
	lost := []int{1, 2, 3, 599}
	for range 2 {
		do(t, c, "script", "flush")
		for i, err := range d.Renew(t.Context(), leases) {
			left := do(t, c, "pttl", fmt.Sprintf("holdfast:{k%d}", i)).(int64)
			if slices.Contains(lost, i) {
				matches(t, fmt.Sprintf("lock %d", i), err, lock.ErrLost)
				if left > 5000 {
					t.Errorf("lock %d is another's or a stranger's, and was extended", i)
				}
				continue
			}
			if err != nil || left < 5000 {
				t.Errorf("lock %d: %v, PTTL %d; want it extended", i, err, left)
			}
		}
	}
	if n := do(t, c, "exists", "holdfast:{k1}"); n != int64(0) {
		t.Error("a renewal created a lock")
	}
	release(t, other)
	if got := d.Renew(t.Context(), nil); len(got) != 0 {
		t.Errorf("Renew of nothing: %v", got)
	}
}

// A connection that the server refuses when it is made gives no reply and, in a
// pipeline of go-redis, no error of a command either. That must not pass for proof.
func TestRenewOverARefusedConnection(t *testing.T) {
	s := testserver.Redis(t)
	admin := dial(t, s.Addr())
	c := dial(t, s.Addr(), func(o *redis.Options) { o.Password = "old"; o.Username = "app" })
	do(t, admin, "acl", "setuser", "app", "on", ">old", "~*", "+@all")
	d := driveOn(t, c)
	g := acquire(t, d, ask("k"))
	do(t, admin, "acl", "setuser", "app", "resetpass", ">new")
	do(t, admin, "client", "kill", "type", "normal", "skipme", "yes")
	var err error
	for range 2 { // the first may meet a connection that has just been closed
		err = d.Renew(t.Context(), []driver.Lease{g.Lease()})[0]
		if err == nil || errors.Is(err, lock.ErrLost) {
			t.Errorf("Renew: %v, want an error that proves nothing", err)
		}
	}
	if !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("Renew: %v, want what the server said", err)
	}
}

func TestForeignValuesAreSeenAndLeftAlone(t *testing.T) {
	d, c := drive(t)
	id := ask("").ID
	put := map[string]func(name string){
		"hash":            func(name string) { do(t, c, "hset", name, "f", "v") },
		"list":            func(name string) { do(t, c, "lpush", name, "v") },
		"set":             func(name string) { do(t, c, "sadd", name, "v") },
		"zset":            func(name string) { do(t, c, "zadd", name, 1, "v") },
		"stream":          func(name string) { do(t, c, "xadd", name, "*", "f", "v") },
		"string":          func(name string) { do(t, c, "set", name, "v") },
		"empty string":    func(name string) { do(t, c, "set", name, "") },
		"id alone":        func(name string) { do(t, c, "set", name, id) },
		"short id":        func(name string) { do(t, c, "set", name, id[:31]+" 1 1 x") },
		"another's lock":  func(name string) { do(t, c, "set", name, id+"|5", "px", 60000) },
		"number and text": func(name string) { do(t, c, "set", name, "1e3") },
		"negative number": func(name string) { do(t, c, "set", name, "-1") },
		"huge number":     func(name string) { do(t, c, "set", name, "9007199254740993") },
	}
	for what, set := range put {
		for _, name := range []string{"holdfast:{cfg:1}", "holdfast:{cfg:1}:token"} {
			set(name)
			dump := do(t, c, "dump", name)
			_, err := d.Acquire(t.Context(), ask("cfg:1"))
			if err == nil || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s at %s: %v, want an error that names it", what, name, err)
			}
			if name == "holdfast:{cfg:1}" {
				if _, err := d.Inspect(t.Context(), "cfg:1"); err == nil || !strings.Contains(err.Error(), name) {
					t.Errorf("Inspect with %s there: %v, want an error that names it", what, err)
				}
			}
			if after := do(t, c, "dump", name); after != dump {
				t.Errorf("%s at %s was changed", what, name)
			}
			if n := do(t, c, "dbsize"); n != int64(1) {
				t.Errorf("%s at %s: %d keys at the server, want it alone", what, name, n)
			}
			do(t, c, "del", name)
			release(t, acquire(t, d, ask("cfg:1")))
			do(t, c, "flushall")
		}
	}
}

// While it is held, the lock is replaced by something of another type.
func TestForeignValueInPlaceOfAHeldLock(t *testing.T) {
	d, c := drive(t)
	r := ask("k")
	g := acquire(t, d, r)
	do(t, c, "del", "holdfast:{k}")
	do(t, c, "hset", "holdfast:{k}", "f", "v")
	matches(t, "Renew", d.Renew(t.Context(), []driver.Lease{g.Lease()})[0], lock.ErrLost)
	matches(t, "Release", g.Release(t.Context()), lock.ErrLost)
	if err := g.Lease().End(t.Context()); err != nil {
		t.Errorf("End: %v", err)
	}
	if err := d.Abandon(t.Context(), r); err != nil {
		t.Errorf("Abandon: %v", err)
	}
	if v := do(t, c, "hget", "holdfast:{k}", "f"); v != "v" {
		t.Errorf("the hash is gone: %v", v)
	}
}

func TestTokensRise(t *testing.T) {
	s := testserver.Redis(t) // without persistence
	c := dial(t, s.Addr())
	d := driveOn(t, c)
	last := lock.Token(0)
	next := func(after string) {
		t.Helper()
		g := acquire(t, d, ask("k"))
		if token(g) <= last {
			t.Errorf("after %s: token %d, not above %d", after, token(g), last)
		}
		last = token(g)
		if v := do(t, c, "get", "holdfast:{k}:token"); v != fmt.Sprint(last) {
			t.Errorf("the counter is %v, want the token %d", v, last)
		}
		if left := do(t, c, "ttl", "holdfast:{k}:token").(int64); left < 86000 || left > 86400 {
			t.Errorf("the counter stays for %d s, want a day", left)
		}
		release(t, g)
	}
	next("nothing")
	next("a release")
	g := acquire(t, d, ask("k"))
	last = token(g)
	do(t, c, "del", "holdfast:{k}")
	next("a lock that went")
	do(t, c, "del", "holdfast:{k}:token")
	next("a counter that went")
	do(t, c, "flushall")
	next("FLUSHALL")
	do(t, c, "persist", "holdfast:{k}:token")
	next("PERSIST")
	ahead := lock.Token(time.Now().Add(time.Hour).UnixMicro())
	do(t, c, "set", "holdfast:{k}:token", fmt.Sprint(uint64(ahead)))
	last = ahead
	next("a clock that was an hour ahead")
	if last != ahead+1 {
		t.Errorf("token %d, want the next after %d", last, ahead)
	}
	do(t, c, "del", "holdfast:{k}:token")
	last = 0
	next("nothing")
	s.Kill()
	s.Start()
	c.Ping(t.Context()) // over the connections that have died
	c.Ping(t.Context())
	next("a restart that lost everything")
}

func TestInspectStrangeOwners(t *testing.T) {
	d, _ := drive(t)
	for _, owner := range []string{"", " ", "a b  c", "|", "host:1:prog|x", "\"q'", `\x00`, "Grüße, 世界", strings.Repeat("x", 256), "12 34"} {
		r := ask("k")
		r.Owner = owner
		g := acquire(t, d, r)
		info, err := d.Inspect(t.Context(), "k")
		if err != nil || len(info.Holders) != 1 {
			t.Fatalf("Inspect: %+v, %v", info, err)
		}
		h := info.Holders[0]
		if h.Owner != owner || h.Token != token(g) || time.Since(h.Since).Abs() > time.Minute || h.Shared {
			t.Errorf("Inspect: %+v, want owner %q and token %d", h, owner, token(g))
		}
		release(t, g)
	}
	info, err := d.Inspect(t.Context(), "k")
	if err != nil || len(info.Holders) != 0 {
		t.Errorf("Inspect of a free key: %+v, %v", info, err)
	}
}

func TestScriptFlushAtEveryPoint(t *testing.T) {
	d, c := drive(t)
	flush := func() { do(t, c, "script", "flush") }
	r := ask("k")
	flush()
	g := acquire(t, d, r)
	flush()
	if errs := d.Renew(t.Context(), []driver.Lease{g.Lease()}); errs[0] != nil {
		t.Errorf("Renew: %v", errs[0])
	}
	flush()
	if _, err := d.Inspect(t.Context(), "k"); err != nil {
		t.Errorf("Inspect: %v", err)
	}
	flush()
	release(t, g)
	flush()
	if err := d.Abandon(t.Context(), r); err != nil {
		t.Errorf("Abandon: %v", err)
	}
}

func TestSharedIsUnsupported(t *testing.T) {
	d, _ := drive(t)
	r := ask("k")
	r.Mode = lock.ModeShared
	_, err := d.Acquire(t.Context(), r)
	matches(t, "Acquire", err, errors.ErrUnsupported)
}

func TestContextThatIsDoneSendsNothing(t *testing.T) {
	d, c := drive(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.Acquire(ctx, ask("k"))
	matches(t, "Acquire", err, context.Canceled)
	if n := do(t, c, "dbsize"); n != int64(0) {
		t.Errorf("%d keys at the server, want none", n)
	}
}
