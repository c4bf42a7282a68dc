package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// What follows are failures of other people's locks, as they were reported: each test
// is named for one, and takes its whole kind. What does not need Redis is in package
// conformance.

// caseTTL is of the Lockers here: short, and yet longer than a busy machine is busy.
const caseTTL = 3 * time.Second

// longTTL is so much longer that a renewal can be told from the end of the lease.
const longTTL = 2 * caseTTL

// caseLocker returns a Locker on a client of its own, which is as go-redis makes it.
func caseLocker(t *testing.T, addr string, observe ...func(context.Context, lock.Event)) lock.Locker {
	t.Helper()
	cfg := redislock.Config{Config: lock.Config{TTL: caseTTL}}
	for _, o := range observe {
		cfg.Observe = o
	}
	return lockerOn(t, dial(t, addr, func(o *redis.Options) { o.MaxRetries = 3 }), cfg)
}

func try(t *testing.T, l lock.Locker, key string) lock.Handle {
	t.Helper()
	h, err := l.TryAcquire(t.Context(), key)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return h
}

func letGo(t *testing.T, h lock.Handle) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("Release of %q: %v", h.Key(), err)
	}
}

// outcome is what came of an Acquire.
type outcome struct {
	h    lock.Handle
	err  error
	took time.Duration
}

// wait has l wait for key beside the test.
func wait(t *testing.T, l lock.Locker, key string, opts ...lock.Option) <-chan outcome {
	ch := make(chan outcome, 1)
	go func() {
		began := time.Now()
		h, err := l.Acquire(t.Context(), key, opts...)
		ch <- outcome{h, err, time.Since(began)}
	}()
	return ch
}

// patience is longer than anything takes that is to happen soon.
const patience = 20 * time.Second

func await[T any](t *testing.T, what string, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("%s: not within %v", what, patience)
		panic("unreachable")
	}
}

// granted waits for a waiter to be given its lock.
func granted(t *testing.T, what string, ch <-chan outcome) lock.Handle {
	t.Helper()
	got := await(t, what, ch)
	if got.err != nil {
		t.Fatalf("%s: %v", what, got.err)
	}
	return got.h
}

// queued waits until so many wait for key at the server.
func queued(t *testing.T, l lock.Locker, key string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d wait for %q", n, key), func() bool {
		info, err := l.Inspect(t.Context(), key)
		return err == nil && info.Waiters == n
	})
}

func lostNow(h lock.Handle) bool {
	select {
	case <-h.Lost():
		return true
	default:
		return false
	}
}

// renewals tells, for each key, when it was renewed.
type renewals map[string]chan struct{}

func newRenewals(keys ...string) renewals {
	r := make(renewals)
	for _, key := range keys {
		r[key] = make(chan struct{}, 1)
	}
	return r
}

func (r renewals) observe(_ context.Context, ev lock.Event) {
	if ev.Kind != lock.Renewed {
		return
	}
	select {
	case r[ev.Key] <- struct{}{}:
	default:
	}
}

// once waits until key was renewed.
func (r renewals) once(key string) error {
	select {
	case <-r[key]:
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%q was not renewed", key)
	}
}

// next waits until key was renewed by a request that was sent from now on: the first
// that is told of may have been under way.
func (r renewals) next(key string) error {
	select {
	case <-r[key]: // told of already
	default:
	}
	return errors.Join(r.once(key), r.once(key))
}

// R1: the scripts are flushed, and the server is restarted, under Lockers in use.
func TestScriptsAreForgotten(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	admin := dial(t, s.Addr())
	flush := func() error { return admin.ScriptFlush(t.Context()).Err() }
	var keys []string
	for i := range 20 {
		keys = append(keys, fmt.Sprint("r1-", i))
	}
	renewed := newRenewals(keys...)
	l, other := caseLocker(t, s.Addr(), renewed.observe), caseLocker(t, s.Addr())

	// hold keeps a lock over renewals, each of which finds its script flushed.
	hold := func(key string) error {
		if err := flush(); err != nil {
			return err
		}
		h, err := l.TryAcquire(t.Context(), key)
		if err != nil {
			return err
		}
		for range 2 {
			if err := errors.Join(flush(), renewed.next(key)); err != nil {
				return err
			}
		}
		if lostNow(h) {
			return h.Err()
		}
		return errors.Join(flush(), h.Release(t.Context()))
	}
	var all sync.WaitGroup
	for _, key := range keys {
		all.Go(func() {
			if err := hold(key); err != nil {
				t.Errorf("%s: %v", key, err)
			}
		})
	}
	all.Wait()

	h := try(t, l, "r1-queue")
	waiting := wait(t, other, "r1-queue")
	queued(t, l, "r1-queue", 1)
	if err := flush(); err != nil {
		t.Fatal(err)
	}
	letGo(t, h)
	h = granted(t, "the waiter of a server without scripts", waiting)

	// The server forgets all that it was told: scripts, locks, queues, subscriptions.
	waiting = wait(t, l, "r1-queue")
	queued(t, l, "r1-queue", 1)
	s.Kill()
	s.Start()
	letGo(t, try(t, l, "r1-0"))
	letGo(t, granted(t, "the waiter of a server that was restarted", waiting))
	await(t, "the loss of a lock that the server forgot", h.Lost())
	eventually(t, "both Lockers have subscribed again", func() bool {
		channels, err := admin.PubSubChannels(t.Context(), "holdfast:wake:*").Result()
		return err == nil && len(channels) == 2
	})
}

// R2: a key's text leads no helper key to another node of a cluster: of every key that
// any command names, the server itself says the slot.
func TestKeysOfALockShareASlot(t *testing.T) {
	t.Parallel()
	keys := []string{"{a}:{b}", "x{y", "}x", "{}x", "a{}b", "user:{42}:lock", "{{z}}"}
	addrs := cluster(t)
	var monitors []*monitor
	for _, addr := range addrs {
		monitors = append(monitors, watch(t, addr))
	}
	renewed := newRenewals(keys...)
	locker := func() lock.Locker {
		c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs[:1], ContextTimeoutEnabled: true})
		t.Cleanup(func() { c.Close() })
		return lockerOn(t, c, redislock.Config{Prefix: "app", Config: lock.Config{TTL: caseTTL, Observe: renewed.observe}})
	}
	useAll(t, keys, renewed, locker(), locker(), locker())

	slots := make(map[string]map[int64]bool)
	kinds := make(map[string]int)
	for i, m := range monitors {
		c := dial(t, addrs[i])
		for name := range m.keys(t, c) {
			end := strings.Index(name, "}")
			if !strings.HasPrefix(name, "app:{") || end < 0 {
				t.Errorf("a key that does not begin as it should: %q", name)
				continue
			}
			tag := name[:end+1]
			if slots[tag] == nil {
				slots[tag] = make(map[int64]bool)
			}
			slots[tag][do(t, c, "cluster", "keyslot", name).(int64)] = true
			kind, _, _ := strings.Cut(strings.TrimPrefix(name[end+1:], ":"), ":")
			kinds[kind]++
		}
	}
	for tag, in := range slots {
		if len(in) != 1 {
			t.Errorf("the keys of %q are in %d slots", tag, len(in))
		}
	}
	for _, kind := range []string{"", "token", "void", "queue", "turn"} {
		if kinds[kind] < len(keys) {
			t.Errorf("%d keys of the kind %q were seen, want one of each lock", kinds[kind], kind)
		}
	}
	if len(slots) != len(keys) {
		t.Errorf("%d locks at the servers, want %d", len(slots), len(keys))
	}
}

// useAll does with every key all that can be done with one.
func useAll(t *testing.T, keys []string, renewed renewals, a, b, c lock.Locker) {
	t.Helper()
	held := make(map[string]lock.Handle)
	waiting := make(map[string]<-chan outcome)
	for _, key := range keys {
		held[key] = try(t, a, key)
		waiting[key] = wait(t, b, key)
		queued(t, a, key, 1)
	}
	for _, key := range keys {
		if err := renewed.once(key); err != nil {
			t.Error(err)
		}
		if got := await(t, "the end of a wait", wait(t, c, key, lock.Wait(time.Second))); !errors.Is(got.err, lock.ErrHeld) {
			t.Errorf("Acquire(%q) of a held key: %v", key, got.err)
		}
		queued(t, a, key, 1)
	}
	for _, key := range keys {
		letGo(t, held[key])
		letGo(t, granted(t, "a waiter", waiting[key]))
	}
}

// R5: there is data of the application's under a name of the lock.
func TestForeignDataUnderNamesOfALock(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	c := dial(t, s.Addr())
	f := foreignData{c: c, l: caseLocker(t, s.Addr()), holder: caseLocker(t, s.Addr()), waiter: caseLocker(t, s.Addr())}
	put := map[string]func(name string){
		"hash":           func(name string) { do(t, c, "hset", name, "f", "v") },
		"list":           func(name string) { do(t, c, "lpush", name, "v") },
		"set":            func(name string) { do(t, c, "sadd", name, "v") },
		"zset":           func(name string) { do(t, c, "zadd", name, 1, "v") },
		"string":         func(name string) { do(t, c, "set", name, "v") },
		"empty string":   func(name string) { do(t, c, "set", name, "") },
		"hash for a day": func(name string) { do(t, c, "hset", name, "f", "v"); do(t, c, "expire", name, 86400) },
		"zset for a day": func(name string) { do(t, c, "zadd", name, 1, "v"); do(t, c, "expire", name, 86400) },
	}
	t.Run("all", func(t *testing.T) {
		for what, put := range put {
			for _, kind := range []string{"", ":token", ":queue", ":turn"} {
				t.Run(what+kind, func(t *testing.T) {
					t.Parallel()
					f.prove(t, "cfg:"+what, kind, put)
				})
			}
		}
	})
}

// foreignData is the world of one who finds it.
type foreignData struct {
	c                 *redis.Client
	l, holder, waiter lock.Locker
}

func (f foreignData) prove(t *testing.T, key, kind string, put func(string)) {
	key += strings.ReplaceAll(kind, ":", "-")
	name := "holdfast:{" + key + "}" + kind
	put(name)
	dump, left := do(t, f.c, "dump", name), do(t, f.c, "ttl", name).(int64)
	named := func(call string, h lock.Handle, err error) {
		t.Helper()
		if h == nil && (errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), strconv.Quote(name))) {
			t.Errorf("%s: %v, want that it works or an error that names %s", call, err, name)
		}
		if h != nil && (kind == "" || kind == ":token") {
			t.Errorf("%s: it works, beside what is at %s", call, name)
		}
		if h != nil {
			letGo(t, h)
		}
	}
	h, err := f.l.TryAcquire(t.Context(), key)
	named("TryAcquire", h, err)
	got := await(t, "Acquire", wait(t, f.l, key, lock.Wait(time.Second)))
	named("Acquire", got.h, got.err)

	// It comes where there is one who holds and one who waits.
	do(t, f.c, "rename", name, "{"+key+"}")
	h = try(t, f.holder, key)
	waiting := wait(t, f.waiter, key)
	queued(t, f.l, key, 1)
	do(t, f.c, "rename", "{"+key+"}", name)
	if _, err := f.l.TryAcquire(t.Context(), key); kind != "" && !errors.Is(err, lock.ErrHeld) {
		t.Errorf("TryAcquire of what is held: %v", err)
	}
	got = await(t, "Acquire", wait(t, f.l, key, lock.Wait(time.Second)))
	if !errors.Is(got.err, lock.ErrHeld) {
		named("Acquire of what is held", got.h, got.err)
	}
	err = h.Release(t.Context())
	if gone := kind == ""; gone != errors.Is(err, lock.ErrLost) || !gone && err != nil {
		t.Errorf("Release: %v", err)
	}
	got = await(t, "the waiter", waiting)
	named("the waiter", got.h, got.err)

	if after := do(t, f.c, "dump", name); after != dump {
		t.Errorf("%s was changed", name)
	}
	if after := do(t, f.c, "ttl", name).(int64); after > left || after < left-600 { // as time goes by
		t.Errorf("%s has %d s to live, and had %d", name, after, left)
	}
	do(t, f.c, "del", name)
	letGo(t, granted(t, "Acquire when it is deleted", wait(t, f.l, key, lock.Wait(patience))))
}

// R5: while it is held, the lock is replaced by something of the application's.
func TestHeldLockIsReplaced(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	c := dial(t, s.Addr())
	l, other := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: longTTL}}), caseLocker(t, s.Addr())
	h := try(t, l, "cfg:1")
	waiting := wait(t, other, "cfg:1")
	queued(t, l, "cfg:1", 1)
	began := time.Now()
	_, err := c.TxPipelined(t.Context(), func(p redis.Pipeliner) error { // or the waiter is faster
		p.Del(t.Context(), "holdfast:{cfg:1}")
		p.HSet(t.Context(), "holdfast:{cfg:1}", "f", "v")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the loss", h.Lost())
	if took := time.Since(began); took > longTTL/2+2*time.Second {
		t.Errorf("Lost closed after %v, want the next renewal", took)
	}
	if got := await(t, "the waiter", waiting); got.err == nil || errors.Is(got.err, lock.ErrHeld) || !strings.Contains(got.err.Error(), "holdfast:{cfg:1}") {
		t.Errorf("the waiter: %v, want an error that names what is there", got.err)
	}
	matches(t, "Release", h.Release(t.Context()), lock.ErrLost)
	if v := do(t, c, "hget", "holdfast:{cfg:1}", "f"); v != "v" {
		t.Errorf("the hash is %v", v)
	}
	do(t, c, "del", "holdfast:{cfg:1}")
	queued(t, l, "cfg:1", 0)
}

// vanishing is a way in which a lock goes from under its holder.
type vanishing struct {
	name string
	args []string // of the server
	do   func(*line)
}

var vanishings = []vanishing{
	{"deletion", nil, func(ln *line) { do(ln.t, ln.admin, "del", "holdfast:{k}") }},
	{"early expiry", nil, func(ln *line) { do(ln.t, ln.admin, "pexpire", "holdfast:{k}", 1) }},
	{"flush", nil, func(ln *line) { do(ln.t, ln.admin, "flushall") }},
	{"restart without persistence", nil, func(ln *line) { ln.server.Kill(); ln.server.Start() }},
	{"eviction", []string{"--maxmemory-policy", "allkeys-lru"}, evict},
}

// evict has the server drop what it holds, as one that is short of memory does. It carries
// out together what it is sent together: nobody's command comes before it has room again,
// or the lock of the next one may go, too.
func evict(ln *line) {
	var there *redis.IntCmd
	_, err := ln.admin.Pipelined(ln.t.Context(), func(p redis.Pipeliner) error {
		p.ConfigSet(ln.t.Context(), "maxmemory", "1")
		there = p.Exists(ln.t.Context(), "holdfast:{k}")
		p.ConfigSet(ln.t.Context(), "maxmemory", "0")
		return nil
	})
	if err != nil {
		ln.t.Fatal(err)
	}
	if there.Val() != 0 {
		ln.t.Fatal("the lock is not evicted")
	}
}

// R7: the server loses a lock that is held. The next one gets it at once, the holder is
// told and never makes it again, and can have it later, with a greater token.
func TestLockVanishes(t *testing.T) {
	t.Parallel()
	for _, v := range vanishings {
		for what, next := range map[string]func(*line, lock.Locker) <-chan lock.Handle{
			"nobody": nil, "one polls": (*line).poll, "one waits": (*line).stand,
		} {
			t.Run(v.name+"/"+what, func(t *testing.T) {
				t.Parallel()
				s := testserver.Redis(t, testserver.Args(v.args...))
				(&line{t: t, server: s, admin: dial(t, s.Addr())}).vanish(v, next)
			})
		}
	}
}

// vanish has a lock vanish while another may want it.
func (ln *line) vanish(v vanishing, wants func(*line, lock.Locker) <-chan lock.Handle) {
	t := ln.t
	a, b := ln.locker(lock.Config{TTL: longTTL}), ln.locker(lock.Config{TTL: longTTL})
	h := ln.acquire(a)
	var waiting <-chan lock.Handle
	if wants != nil {
		waiting = wants(ln, b)
	}
	v.do(ln)
	began := time.Now()
	var next lock.Handle
	if wants != nil {
		next = ln.got("the next", waiting)
	}
	await(t, "the loss", h.Lost())
	if took := time.Since(began); took > longTTL/2+2*time.Second {
		t.Errorf("Lost closed %v after the lock vanished, want the next renewal", took)
	}
	if next == nil {
		next = ln.acquire(b) // nobody has made it again
	}
	matches(t, "Release of what vanished", h.Release(t.Context()), lock.ErrLost)
	if _, err := a.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("TryAcquire of what another holds: %v", err)
	}
	if err := next.Err(); err != nil {
		t.Errorf("the next holder: %v", err)
	}
	ln.release(next)
	again := ln.acquire(a)
	first, _ := h.Token()
	second, _ := next.Token()
	if third, _ := again.Token(); first >= second || second >= third {
		t.Errorf("tokens %d, %d, %d do not rise", first, second, third)
	}
	ln.release(again)
}

// stand has l wait in the queue.
func (ln *line) stand(l lock.Locker) <-chan lock.Handle {
	got := ln.wait(ln.t.Context(), l)
	ln.queued(1)
	return got
}

// poll has l try again and again until it has the lock.
func (ln *line) poll(l lock.Locker) <-chan lock.Handle {
	got := make(chan lock.Handle, 1)
	go func() {
		defer close(got)
		for ln.t.Context().Err() == nil {
			h, err := l.TryAcquire(ln.t.Context(), "k")
			if err == nil {
				got <- h
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return got
}
