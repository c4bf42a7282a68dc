package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

func openURL(t testing.TB, url string) lock.Locker {
	t.Helper()
	l, err := lock.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func newProxy(t testing.TB, addr string) *conformance.Proxy {
	t.Helper()
	p, err := conformance.NewProxy(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// must returns a handle that there must be.
func must(t testing.TB) func(lock.Handle, error) lock.Handle {
	return func(h lock.Handle, err error) lock.Handle {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
}

func release(t testing.TB, h lock.Handle) {
	t.Helper()
	if err := h.Release(context.Background()); err != nil {
		t.Errorf("Release of %q: %v", h.Key(), err)
	}
}

// took runs f and fails the test if it takes longer than at most.
func took(t testing.TB, what string, most time.Duration, f func()) time.Duration {
	t.Helper()
	began := time.Now()
	f()
	d := time.Since(began)
	if d > most {
		t.Errorf("%s took %v, want %v at most", what, d, most)
	}
	return d
}

// A server that is stopped, gone, cut off or mute bounds no call less than a good one.
func TestUnreachableServer(t *testing.T) {
	for name, fault := range map[string]struct {
		begin, end func(*testserver.Server, *conformance.Proxy)
		named      bool // the connection's end or absence is told, and not only that there was no answer
	}{
		"stopped":   {func(s *testserver.Server, _ *conformance.Proxy) { s.Pause() }, func(s *testserver.Server, _ *conformance.Proxy) { s.Resume() }, false},
		"gone":      {func(_ *testserver.Server, p *conformance.Proxy) { p.Down() }, func(_ *testserver.Server, p *conformance.Proxy) { p.Heal() }, true},
		"blackhole": {func(_ *testserver.Server, p *conformance.Proxy) { p.Stall() }, func(_ *testserver.Server, p *conformance.Proxy) { p.Heal() }, false},
		"killed":    {func(s *testserver.Server, _ *conformance.Proxy) { s.Kill() }, func(s *testserver.Server, _ *conformance.Proxy) { s.Start() }, true},
	} {
		for _, byClient := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ",client=", byClient), func(t *testing.T) {
				t.Parallel()
				s := testserver.Etcd(t, testserver.Durable())
				p := newProxy(t, s.Addr())
				var l lock.Locker
				if byClient {
					l = lockerOn(t, dial(t, p.Addr()), etcdlock.Config{Config: lock.Config{TTL: 3 * time.Second}})
				} else {
					l = openURL(t, "etcd://"+p.Addr()+"?ttl=3s")
				}
				warmUp(t, l)
				fault.begin(s, p)
				took(t, "TryAcquire", 11*time.Second, func() {
					_, err := l.TryAcquire(t.Context(), "e3")
					matches(t, "TryAcquire", err, lock.ErrUnavailable)
					if fault.named && err != nil && !regexp.MustCompile("EOF|reset|refused|broken pipe").MatchString(err.Error()) {
						t.Errorf("TryAcquire: %v, want the reason", err)
					}
				})
				took(t, "Acquire with Wait", 3*time.Second, func() {
					_, err := l.Acquire(t.Context(), "e3", lock.Wait(2*time.Second))
					matches(t, "Acquire with Wait", err, lock.ErrUnavailable)
				})
				took(t, "Acquire with a deadline", 2*time.Second, func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Second)
					defer cancel()
					_, err := l.Acquire(ctx, "e3")
					matches(t, "Acquire with a deadline", err, context.DeadlineExceeded)
				})
				fault.end(s, p)
				release(t, must(t)(l.Acquire(t.Context(), "e3", lock.Wait(15*time.Second))))
				fault.begin(s, p)
				took(t, "Close", 3*time.Second, func() { _ = l.Close() })
				fault.end(s, p)
			})
		}
	}
}

// Twenty resets, one a second, lose neither a lock nor a place in the queue.
func TestResets(t *testing.T) {
	s := testserver.Etcd(t)
	p, q := newProxy(t, s.Addr()), newProxy(t, s.Addr())
	a, b, c := openURL(t, "etcd://"+p.Addr()+"?ttl=5s"), openURL(t, "etcd://"+q.Addr()+"?ttl=5s"), openURL(t, "etcd://"+s.Addr())
	h := must(t)(a.Acquire(t.Context(), "e4"))
	second := wait(t, b, "e4")
	until(t, func() bool { return waiters(t, c, "e4") == 1 })
	third := wait(t, c, "e4")
	until(t, func() bool { return waiters(t, c, "e4") == 2 })
	for range 20 {
		p.Cut()
		q.Cut()
		time.Sleep(time.Second)
		if err := h.Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := c.TryAcquire(t.Context(), "e4"); !errors.Is(err, lock.ErrHeld) {
			t.Fatalf("TryAcquire by another: %v, want ErrHeld", err)
		}
	}
	release(t, h)
	h = second()
	if n := waiters(t, c, "e4"); n != 1 {
		t.Errorf("%d wait after the first hand-over, want 1: the first in the queue must have got it", n)
	}
	release(t, h)
	release(t, third())
	nothingLeft(t, dial(t, s.Addr()), "e4")
}

// wait has l wait for key, and returns a function that returns what it got.
func wait(t testing.TB, l lock.Locker, key string) func() lock.Handle {
	t.Helper()
	type got struct {
		h   lock.Handle
		err error
	}
	answers := make(chan got, 1)
	go func() {
		h, err := l.Acquire(context.Background(), key, lock.Wait(time.Minute))
		answers <- got{h, err}
	}()
	return func() lock.Handle {
		t.Helper()
		g := <-answers
		return must(t)(g.h, g.err)
	}
}

func waiters(t testing.TB, l lock.Locker, key string) int {
	t.Helper()
	info, err := l.Inspect(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return info.Waiters
}

func nothingLeft(t testing.TB, c *clientv3.Client, key string) {
	t.Helper()
	if left := names(t, c, "/holdfast/{"+key+"}/"); len(left) > 0 {
		t.Errorf("left at the server: %q", left)
	}
}

// A connection that is dead for a while, and not for the length of a lease, loses nothing; one
// that is dead for longer loses the lock before another gets it.
func TestCutOff(t *testing.T) {
	s := testserver.Etcd(t)
	p := newProxy(t, s.Addr())
	a, b := openURL(t, "etcd://"+p.Addr()+"?ttl=5s"), openURL(t, "etcd://"+s.Addr())
	h := must(t)(a.Acquire(t.Context(), "e4"))
	p.Stall()
	time.Sleep(1500 * time.Millisecond)
	p.Heal()
	time.Sleep(4 * time.Second)
	if err := h.Err(); err != nil {
		t.Fatalf("after 1.5 s without a byte: %v", err)
	}
	p.Stall()
	cut := time.Now()
	next := wait(t, b, "e4")
	<-h.Lost()
	lost := time.Now()
	if d := lost.Sub(cut); d > 5*time.Second {
		t.Errorf("Lost closed %v after the connection had died, want a TTL of 5 s at most", d)
	}
	got := next()
	t.Logf("Lost closed %v before another had the lock", time.Since(lost))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	took(t, "Release of what was lost", 2*time.Second, func() { matches(t, "Release", h.Release(ctx), lock.ErrLost) })
	p.Heal()
	time.Sleep(time.Second)
	matches(t, "Err", h.Err(), lock.ErrLost)
	release(t, got)
	release(t, must(t)(a.Acquire(t.Context(), "e4", lock.Wait(5*time.Second))))
}

// The TTL is rounded up, and what the server grants is told and relied on.
func TestTTL(t *testing.T) {
	s := testserver.Etcd(t, testserver.Args("--election-timeout", "1000")) // its least TTL is 2 s
	direct := dial(t, s.Addr())
	other := lockerOn(t, direct, etcdlock.Config{})
	for asked, granted := range map[time.Duration]int64{
		300 * time.Millisecond: 2, time.Second: 2, 1500 * time.Millisecond: 2, 2 * time.Second: 2, 2100 * time.Millisecond: 3, 25 * 24 * time.Hour: 25 * 24 * 3600,
	} {
		t.Run(asked.String(), func(t *testing.T) {
			t.Parallel()
			var warned sync.Map
			p := newProxy(t, s.Addr())
			l := lockerOn(t, dial(t, p.Addr()), etcdlock.Config{Config: lock.Config{TTL: asked, Observe: func(_ context.Context, ev lock.Event) {
				if ev.Kind == lock.Warning {
					warned.Store(ev.Err.Error(), true)
				}
			}}})
			key := "e5-" + asked.String()
			h := must(t)(l.Acquire(t.Context(), key))
			resp, err := direct.Get(t.Context(), "/holdfast/{"+key+"}/", clientv3.WithPrefix())
			if err != nil || len(resp.Kvs) != 1 {
				t.Fatal(resp, err)
			}
			lease, err := direct.TimeToLive(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
			if err != nil || lease.GrantedTTL != granted {
				t.Errorf("the server granted %d s, want %d: %v", lease.GrantedTTL, granted, err)
			}
			said := ""
			until(t, func() bool {
				warned.Range(func(text, _ any) bool { said = text.(string); return false })
				return said != "" || time.Duration(granted)*time.Second == asked
			})
			if real := time.Duration(granted) * time.Second; (said != "") != (real != asked) || !strings.Contains(said, real.String()) && said != "" {
				t.Errorf("asked for %v, got %v, and the warning is %q", asked, real, said)
			}
			if asked > time.Hour {
				release(t, h)
				return
			}
			time.Sleep(2 * time.Duration(granted) * time.Second)
			if err := h.Err(); err != nil {
				t.Errorf("the lock that is renewed: %v", err)
			}
			p.Stall() // as if it were dead
			began := time.Now()
			next := must(t)(other.Acquire(t.Context(), key, lock.Wait(10*time.Second)))
			if d := time.Since(began); d > time.Duration(granted)*time.Second+2*time.Second {
				t.Errorf("another had to wait %v for a dead holder, want %d s and 2 s at most", d, granted)
			}
			matches(t, "Err of the holder", h.Err(), lock.ErrLost)
			release(t, next)
			p.Heal()
		})
	}
}

// A restart gives dead holders their whole time again, and does not lose the lock of a living
// one.
func TestRestart(t *testing.T) {
	s := testserver.Etcd(t, testserver.Durable())
	p := newProxy(t, s.Addr())
	dead, living, other := openURL(t, "etcd://"+p.Addr()+"?ttl=6s"), openURL(t, "etcd://"+s.Addr()+"?ttl=6s"), openURL(t, "etcd://"+s.Addr())
	h, kept := must(t)(dead.Acquire(t.Context(), "dead")), must(t)(living.Acquire(t.Context(), "living"))
	p.Stall()
	died := time.Now()
	time.Sleep(4 * time.Second)
	s.Kill()
	s.Start()
	next := must(t)(other.Acquire(t.Context(), "dead", lock.Wait(20*time.Second)))
	if d := time.Since(died); d > 14*time.Second {
		t.Errorf("another had to wait %v, want two TTLs and 2 s at most", d)
	}
	matches(t, "Err of the dead", h.Err(), lock.ErrLost)
	if err := kept.Err(); err != nil {
		t.Errorf("the lock of the living: %v", err)
	}
	before, _ := h.Token()
	if after, _ := next.Token(); after <= before {
		t.Errorf("the token after the restart is %d, and was %d before", after, before)
	}
	release(t, next)
	release(t, kept)
}

// A waiter whose lease died gets no lock that the server does not have.
func TestWaiterLosesItsLease(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	a, b := openURL(t, "etcd://"+s.Addr()), openURL(t, "etcd://"+s.Addr()+"?ttl=1s")
	for _, way := range []string{"none", "lease", "key"} {
		h := must(t)(a.Acquire(t.Context(), "e7"))
		next := wait(t, b, "e7")
		until(t, func() bool { return waiters(t, a, "e7") == 1 })
		resp, err := direct.Get(t.Context(), "/holdfast/{e7}/", clientv3.WithLastCreate()...)
		if err != nil {
			t.Fatal(err)
		}
		switch way {
		case "lease":
			if _, err := direct.Revoke(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
				t.Fatal(err)
			}
		case "key":
			if _, err := direct.Delete(t.Context(), string(resp.Kvs[0].Key)); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * time.Second) // longer than its TTL
		release(t, h)
		h = next()
		token, _ := h.Token()
		resp, err = direct.Get(t.Context(), "/holdfast/{e7}/", clientv3.WithPrefix())
		if err != nil || len(resp.Kvs) != 1 || lock.Token(resp.Kvs[0].CreateRevision) != token {
			t.Errorf("%s: a lock with the token %d, and the server has %v: %v", way, token, resp.Kvs, err)
		}
		if _, err := a.TryAcquire(t.Context(), "e7"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("%s: TryAcquire by a third: %v, want ErrHeld", way, err)
		}
		release(t, h)
	}
}

// No hand-over is missed, at whatever moment it comes.
func TestHandOversAreNotMissed(t *testing.T) {
	s := testserver.Etcd(t)
	a, b := openURL(t, "etcd://"+s.Addr()), openURL(t, "etcd://"+s.Addr())
	h := must(t)(a.Acquire(t.Context(), "e7"))
	var delays []time.Duration
	for range 300 {
		next := wait(t, b, "e7")
		time.Sleep(rand.N(3 * time.Millisecond))
		began := time.Now()
		release(t, h)
		h = next()
		delays = append(delays, time.Since(began))
		a, b = b, a
	}
	release(t, h)
	slices.Sort(delays)
	t.Logf("of 300 hand-overs half took %v at most, all %v", delays[150], delays[299])
	if delays[299] > 2*time.Second {
		t.Errorf("a hand-over took %v", delays[299])
	}
}

// A compaction of what a watch has to catch up with does not make anybody wait for ever, nor
// hides a loss.
func TestCompactionDuringWait(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	p := newProxy(t, s.Addr())
	a, b := openURL(t, "etcd://"+s.Addr()), openURL(t, "etcd://"+p.Addr()+"?ttl=10s")
	for range 3 {
		held := must(t)(b.Acquire(t.Context(), "held"))
		h := must(t)(a.Acquire(t.Context(), "waited"))
		next := wait(t, b, "waited")
		until(t, func() bool { return waiters(t, a, "waited") == 1 })
		time.Sleep(300 * time.Millisecond) // both watches are in place
		p.Refuse()
		p.Cut()
		release(t, h)
		if _, err := direct.Delete(t.Context(), "/holdfast/{held}/", clientv3.WithPrefix()); err != nil {
			t.Fatal(err)
		}
		resp, err := direct.Put(t.Context(), "something", "else")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := direct.Compact(t.Context(), resp.Header.Revision); err != nil {
			t.Fatal(err)
		}
		p.Heal()
		release(t, next())
		took(t, "the loss of what was deleted", 10*time.Second, func() { <-held.Lost() })
		matches(t, "Err", held.Err(), lock.ErrLost)
	}
}

// 500 tries that fail leave neither a key nor a lease nor a goroutine.
func TestFailedTriesLeaveNothing(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	a, b := openURL(t, "etcd://"+s.Addr()), openURL(t, "etcd://"+s.Addr())
	h := must(t)(a.Acquire(t.Context(), "taken"))
	warmUp(t, b)
	keys, before, goroutines := len(names(t, direct, "/")), leases(t, direct), runtime.NumGoroutine()
	for i := range 500 {
		var err error
		switch i % 3 {
		case 0:
			_, err = b.TryAcquire(t.Context(), "taken")
		case 1:
			_, err = b.Acquire(t.Context(), "taken", lock.Wait(0))
		case 2:
			ctx, cancel := context.WithTimeout(t.Context(), rand.N(3*time.Millisecond))
			_, err = b.Acquire(ctx, "taken")
			cancel()
		}
		if err == nil {
			t.Fatal("got a lock that is held")
		}
	}
	// The barrier is a key as well, of which a Locker has one at most.
	until(t, func() bool { return len(names(t, direct, "/holdfast/{taken}/")) == 1 })
	if now := len(names(t, direct, "/")); now > keys+1 {
		t.Errorf("there are %d keys, and were %d", now, keys)
	}
	if now := leases(t, direct); now != before {
		t.Errorf("there are %d leases, and were %d", now, before)
	}
	until(t, func() bool { return runtime.NumGoroutine() <= goroutines+20 }) // the first watch of each brings some
	release(t, h)
	_, _ = a.Close(), b.Close()
	until(t, func() bool { return len(names(t, direct, "/")) == 0 && leases(t, direct) == 0 })
}

func leases(t testing.TB, c *clientv3.Client) int {
	t.Helper()
	resp, err := c.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(resp.Leases)
}

// A deletion by somebody else is told at once, of few locks and of many.
func TestDeletionIsToldAtOnce(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	l := openURL(t, "etcd://"+s.Addr()+"?ttl=1m")
	for _, n := range []int{1, 10, 300} { // of many, one watch stands for all
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			handles := make([]lock.Handle, n)
			for i := range handles {
				handles[i] = must(t)(l.Acquire(t.Context(), fmt.Sprintf("many-%d", i)))
			}
			for round, rest := range []time.Duration{0, 500 * time.Millisecond} { // its watch is not in place yet; it is
				time.Sleep(rest)
				h := handles[round*(n-1)]
				if h.Err() != nil {
					continue
				}
				if resp, err := direct.Delete(t.Context(), "/holdfast/{"+h.Key()+"}/", clientv3.WithPrefix()); err != nil || resp.Deleted != 1 {
					t.Fatal(resp, err)
				}
				took(t, "the loss", 3*time.Second, func() { <-h.Lost() })
				matches(t, "Release", h.Release(t.Context()), lock.ErrLost)
			}
			for _, h := range handles {
				if h.Err() == nil {
					release(t, h)
				}
			}
		})
	}
}

// Who takes and gives back locks one after the other has none of them watched.
func TestShortLocksAreNotWatched(t *testing.T) {
	s := testserver.Etcd(t)
	l := openURL(t, "etcd://"+s.Addr())
	locks := 0
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); locks++ {
		h := must(t)(l.Acquire(t.Context(), "one"))
		time.Sleep(5 * time.Millisecond) // its work
		release(t, h)
	}
	if n := counted(t, s, "grpc_server_msg_received_total", "Watch"); n > 6 { // a machine may be busy for a moment
		t.Errorf("for %d locks, each held for less than a moment, the server was asked %d times about watches", locks, n)
	}
}

// Distinct keys never touch each other, whatever their text, nor what is beside them.
func TestKeysAreApart(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	foreign := []string{"/holdfast/", "/holdfast/a", "/holdfast/a/x0123456789abcdef", "/holdfast/{a", "/holdfast/{a}", "/holdfast/{a}x", "/holdfast/{}", "/holdfast"}
	for _, name := range foreign {
		if _, err := direct.Put(t.Context(), name, "foreign"); err != nil {
			t.Fatal(err)
		}
	}
	a, b := openURL(t, "etcd://"+s.Addr()), openURL(t, "etcd://"+s.Addr())
	nested := openURL(t, "etcd://"+s.Addr()+"/holdfast/a")
	keys := []string{
		"a", "/a", "a/", "//a", "a//b", "a/b", "a-b", "a%2Fb", ".", "..", "a/../b", "a/./b", "{", "}", "{}", "{a}", "a}", "{a", "a}/x", "a}/x0123456789abcdef",
		"file:///v/x", "\x00", "\x01", "a\x00", "\u007f", "\ufff0", "\U000F0000", "a b", "a ", "a\nb", "\xff\xfe", "é", "e\u0301", "/", "x", "s", strings.Repeat("k", 1024),
	}
	var handles []lock.Handle
	for _, key := range keys {
		handles = append(handles, must(t)(a.TryAcquire(t.Context(), key)), must(t)(nested.TryAcquire(t.Context(), key)))
		if _, err := b.TryAcquire(t.Context(), key); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("TryAcquire of %q, which is held: %v", key, err)
		}
	}
	for _, h := range handles {
		release(t, h)
	}
	if left := names(t, direct, "/"); len(left) != len(foreign) {
		t.Errorf("left at the server: %q, want what is foreign: %q", left, foreign)
	}
}

// What is put into a lock's own names keeps it taken, and is not touched.
func TestForeignEntry(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	l := openURL(t, "etcd://"+s.Addr())
	for _, name := range []string{"/holdfast/{cfg}/config", "/holdfast/{cfg}/x", "/holdfast/{cfg}/"} {
		if _, err := direct.Put(t.Context(), name, "foreign"); err != nil {
			t.Fatal(err)
		}
		_, err := l.TryAcquire(t.Context(), "cfg")
		matches(t, "TryAcquire", err, lock.ErrHeld)
		_, err = l.Acquire(t.Context(), "cfg", lock.Wait(time.Second))
		matches(t, "Acquire", err, lock.ErrHeld)
		if info, err := l.Inspect(t.Context(), "cfg"); err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != "" {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
		next := wait(t, l, "cfg")
		until(t, func() bool { return waiters(t, l, "cfg") == 1 })
		if resp, err := direct.Delete(t.Context(), name); err != nil || resp.Deleted != 1 {
			t.Fatalf("%s was not there any more: %v", name, err)
		}
		release(t, next())
	}
}

// A Locker uses the same name for a lock again: the server keeps all that there have been until
// it is compacted, and goes through them.
func TestNamesAreUsedAgain(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	a, b := openURL(t, "etcd://"+s.Addr()), openURL(t, "etcd://"+s.Addr())
	var all sync.WaitGroup
	for _, l := range []lock.Locker{a, b} {
		all.Go(func() {
			for i := range 50 {
				opts := []lock.Option{lock.Wait(time.Minute)}
				if i%5 == 0 {
					opts = append(opts, lock.Shared())
				}
				h, err := l.Acquire(t.Context(), "hot", opts...)
				if err != nil {
					t.Error(err)
					return
				}
				release(t, h)
			}
		})
	}
	all.Wait()
	seen := make(map[string]bool)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	for resp := range direct.Watch(ctx, "/holdfast/{hot}/", clientv3.WithPrefix(), clientv3.WithRev(1)) {
		for _, ev := range resp.Events {
			seen[string(ev.Kv.Key)] = true
		}
	}
	if len(seen) == 0 || len(seen) > 4 {
		t.Errorf("%d names for two Lockers and two modes: %v", len(seen), seen)
	}
}

// Of two who wait together for the same rival, one hears that it has gone, and is granted the
// lock, before the other gets to wait: the watch that the first has left has nothing to tell the
// second any more.
func TestWaiterIsLateForTheNews(t *testing.T) {
	s := testserver.Etcd(t)
	type second struct{}
	inLine, goOn := make(chan struct{}), make(chan struct{})
	a := lockerOn(t, dial(t, s.Addr()), etcdlock.Config{Config: lock.Config{Observe: func(ctx context.Context, ev lock.Event) {
		if ev.Kind == lock.Contended && ctx.Value(second{}) != nil {
			close(inLine)
			<-goOn
		}
	}}})
	b := openURL(t, "etcd://"+s.Addr())
	h := must(t)(b.Acquire(t.Context(), "one"))
	shared := func(ctx context.Context) <-chan error {
		done := make(chan error, 1)
		go func() {
			h, err := a.Acquire(ctx, "one", lock.Shared(), lock.Wait(20*time.Second))
			if err == nil {
				err = h.Release(context.Background())
			}
			done <- err
		}()
		return done
	}
	first := shared(t.Context())
	until(t, func() bool { return waiters(t, b, "one") == 1 })
	late := shared(context.WithValue(t.Context(), second{}, true))
	<-inLine
	release(t, h)
	if err := <-first; err != nil {
		t.Errorf("the first: %v", err)
	}
	close(goOn)
	if err := <-late; err != nil {
		t.Errorf("the second: %v", err)
	}
}

// A waiter asks the server for nothing while it waits.
func TestWaitersDoNotPoll(t *testing.T) {
	s := testserver.Etcd(t)
	a := openURL(t, "etcd://"+s.Addr()+"?ttl=1m")
	h := must(t)(a.Acquire(t.Context(), "one"))
	var next []func() lock.Handle
	for i := range 10 { // in this order
		next = append(next, wait(t, openURL(t, "etcd://"+s.Addr()+"?ttl=1m"), "one"))
		until(t, func() bool { return waiters(t, a, "one") == i+1 })
	}
	time.Sleep(500 * time.Millisecond)
	before := requests(t, s)
	time.Sleep(3 * time.Second)
	if n := requests(t, s) - before; n > 5 {
		t.Errorf("10 who wait made %d requests in 3 s", n)
	}
	release(t, h)
	after := requests(t, s)
	got := next[0]()
	time.Sleep(500 * time.Millisecond)
	if n := requests(t, s) - after; n > 4 { // of ten who wait, one looks
		t.Errorf("one release caused %d requests of ten who wait, want 4 at most", n)
	}
	for _, f := range next[1:] {
		release(t, got)
		got = f()
	}
	release(t, got)
}

// requests is how many the server has been sent: of these methods, if any are given.
func requests(t testing.TB, s *testserver.Server, methods ...string) int {
	t.Helper()
	return counted(t, s, "grpc_server_started_total", methods...)
}

// counted is what the server has counted of something.
func counted(t testing.TB, s *testserver.Server, what string, methods ...string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr()+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	for line := range strings.Lines(string(body)) {
		isOne := func(method string) bool { return strings.Contains(line, `grpc_method="`+method+`"`) }
		if !strings.HasPrefix(line, what+"{") || len(methods) > 0 && !slices.ContainsFunc(methods, isOne) {
			continue
		}
		var n float64
		_, _ = fmt.Sscan(line[strings.LastIndex(line, " ")+1:], &n)
		total += int(n)
	}
	return total
}

// An endpoint that accepts and never answers is passed by, and one that falls mute does not
// keep those waiting who hear of their turn through it.
func TestMuteEndpoint(t *testing.T) {
	s := testserver.Etcd(t)
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close() // nobody accepts: the kernel does
	l := openURL(t, fmt.Sprintf("etcd://%s,%s?ttl=6s", mute.Addr(), s.Addr()))
	took(t, "a lock beside a mute endpoint", 5*time.Second, func() { release(t, must(t)(l.Acquire(t.Context(), "one"))) })

	for _, byClient := range []bool{false, true} {
		p, q := newProxy(t, s.Addr()), newProxy(t, s.Addr())
		var b lock.Locker
		if byClient { // it has no keep-alive: only the sign of life tells
			b = lockerOn(t, dial(t, p.Addr(), func(c *clientv3.Config) { c.Endpoints = append(c.Endpoints, q.Addr()) }), etcdlock.Config{Config: lock.Config{TTL: 6 * time.Second}})
		} else {
			b = openURL(t, fmt.Sprintf("etcd://%s,%s?ttl=6s", p.Addr(), q.Addr()))
		}
		for i, one := range []*conformance.Proxy{p, q} {
			key := fmt.Sprint("two-", i)
			h := must(t)(l.Acquire(t.Context(), key))
			next := wait(t, b, key)
			until(t, func() bool { return waiters(t, l, key) == 1 })
			one.Stall()
			release(t, h)
			took(t, "a hand-over with one of two endpoints mute", 15*time.Second, func() { release(t, next()) })
			one.Heal()
		}
	}
	dead := fmt.Sprintf("etcd://%s?ttl=6s", mute.Addr())
	took(t, "Open of a mute server", 7*time.Second, func() {
		_, err := lock.Open(t.Context(), dead)
		matches(t, "Open of a mute server", err, lock.ErrUnavailable)
	})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	took(t, "Open with a deadline", 2*time.Second, func() {
		_, err := lock.Open(ctx, dead)
		matches(t, "Open with a deadline", err, context.DeadlineExceeded)
	})
}

// However many ask a server that is not there, the client does not dial as often.
func TestDialsArePaced(t *testing.T) {
	s := testserver.Etcd(t)
	l := openURL(t, "etcd://"+s.Addr()+"?ttl=1m")
	warmUp(t, l)
	s.Kill()
	gone, err := net.Listen("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var dials atomic.Int64
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := gone.Accept()
			if err != nil {
				return
			}
			dials.Add(1)
			conn.Close()
		}
	})
	began := time.Now()
	for i := range 300 {
		all.Go(func() { _, _ = l.Acquire(t.Context(), fmt.Sprint("key-", i), lock.Wait(3*time.Second)) })
	}
	time.Sleep(2 * time.Second)
	if n, d := dials.Load(), time.Since(began); n > int64(d/(20*time.Millisecond)) { // some are the client's own
		t.Errorf("%d dials in %v", n, d)
	}
	gone.Close()
	all.Wait()
}

// Goroutines of one Locker are strangers to each other, and a release that is done again
// touches nobody.
func TestOneLocker(t *testing.T) {
	s := testserver.Etcd(t)
	l := openURL(t, "etcd://"+s.Addr())
	var all sync.WaitGroup
	inside, most := 0, 0
	for range 50 {
		all.Go(func() {
			for range 20 {
				h, err := l.Acquire(t.Context(), "e8", lock.Wait(time.Minute))
				if err != nil {
					t.Error(err)
					return
				}
				inside++
				most = max(most, inside)
				inside--
				release(t, h)
			}
		})
	}
	all.Wait()
	if most != 1 {
		t.Errorf("%d were inside at once", most)
	}
	first := must(t)(l.Acquire(t.Context(), "e8"))
	if _, err := l.TryAcquire(t.Context(), "e8"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("TryAcquire of what this Locker holds: %v, want ErrHeld", err)
	}
	release(t, first)
	second := must(t)(l.Acquire(t.Context(), "e8"))
	_ = first.Release(t.Context())
	stillHeld(t, dial(t, s.Addr()), second)
	release(t, second)
}

// A server that is stopped while it is asked leaves nothing of what was given up meanwhile.
func TestStoppedDuringAcquire(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	a, b := openURL(t, "etcd://"+s.Addr()+"?ttl=3s"), openURL(t, "etcd://"+s.Addr()+"?ttl=3s")
	warmUp(t, a)
	warmUp(t, b)
	stop := make(chan struct{})
	var all sync.WaitGroup
	for i := range 20 {
		l := []lock.Locker{a, b}[i%2]
		all.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				ctx, cancel := context.WithTimeout(t.Context(), rand.N(20*time.Millisecond))
				h, err := l.Acquire(ctx, fmt.Sprint("stopped-", i/4))
				cancel()
				if err == nil {
					_ = h.Release(context.Background())
				}
			}
		})
	}
	for range 3 {
		time.Sleep(300 * time.Millisecond)
		s.Pause()
		time.Sleep(700 * time.Millisecond)
		s.Resume()
	}
	close(stop)
	all.Wait()
	until(t, func() bool { return len(names(t, direct, "/holdfast/{s")) == 0 })
	for i := range 5 {
		release(t, must(t)(b.Acquire(t.Context(), fmt.Sprint("stopped-", i), lock.Wait(5*time.Second))))
	}
	_, _ = a.Close(), b.Close()
	until(t, func() bool { return len(names(t, direct, "/")) == 0 && leases(t, direct) == 0 })
}
