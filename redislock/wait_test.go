package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/redislock"
)

// line is a lock, whose Lockers have connections of their own.
type line struct {
	t      *testing.T
	server *testserver.Server
	admin  *redis.Client
}

func newLine(t *testing.T) *line {
	t.Helper()
	s := testserver.Redis(t)
	return &line{t: t, server: s, admin: dial(t, s.Addr())}
}

func (ln *line) locker(cfg lock.Config) lock.Locker {
	ln.t.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = ttl
	}
	return lockerOn(ln.t, dial(ln.t, ln.server.Addr()), redislock.Config{Config: cfg})
}

// calm returns a Locker whose waiters take their turn however busy the machine is.
func (ln *line) calm() lock.Locker {
	ln.t.Helper()
	l, err := redislock.NewWithHeadStart(dial(ln.t, ln.server.Addr()), redislock.Config{Config: lock.Config{TTL: ttl}}, 999*time.Millisecond)
	if err != nil {
		ln.t.Fatal(err)
	}
	ln.t.Cleanup(func() { l.Close() })
	return l
}

func (ln *line) acquire(l lock.Locker) lock.Handle {
	ln.t.Helper()
	h, err := l.TryAcquire(ln.t.Context(), "k")
	if err != nil {
		ln.t.Fatal(err)
	}
	return h
}

// queued waits until n requests stand in the queue.
func (ln *line) queued(n int) {
	ln.t.Helper()
	eventually(ln.t, fmt.Sprintf("%d requests are queued", n), func() bool { return do(ln.t, ln.admin, "zcard", "holdfast:{k}:queue") == int64(n) })
}

// wait has l wait for the lock; the channel gets its handle.
func (ln *line) wait(ctx context.Context, l lock.Locker) <-chan lock.Handle {
	got := make(chan lock.Handle, 1)
	go func() {
		defer close(got)
		h, err := l.Acquire(ctx, "k")
		if err == nil {
			got <- h
		} else if ctx.Err() == nil {
			ln.t.Errorf("Acquire: %v", err)
		}
	}()
	return got
}

func (ln *line) release(h lock.Handle) {
	ln.t.Helper()
	if err := h.Release(ln.t.Context()); err != nil {
		ln.t.Errorf("Release: %v", err)
	}
}

// wantPlace has r wait on a driver, for one slice of it.
func wantPlace(ctx context.Context, d driver.Driver, r *driver.Request) error {
	r.Wait, r.Busy = true, func() {}
	for {
		_, err := d.Acquire(ctx, r)
		if !errors.Is(err, lock.ErrHeld) {
			return err
		}
		time.Sleep(time.Millisecond) // it does not listen yet
	}
}

// got waits for a waiter to get the lock.
func (ln *line) got(what string, h <-chan lock.Handle) lock.Handle {
	ln.t.Helper()
	select {
	case h := <-h:
		if h == nil {
			ln.t.FailNow()
		}
		return h
	case <-time.After(20 * time.Second):
		ln.t.Fatalf("%s does not get the lock", what)
		return nil
	}
}

// Each release lets in who has waited longest, and the last holder stands behind.
func TestWaitersAreCalledInOrder(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	first := ln.calm()
	held := ln.acquire(first)
	var waiters []<-chan lock.Handle
	for i := range 5 {
		waiters = append(waiters, ln.wait(t.Context(), ln.calm()))
		ln.queued(i + 1)
	}
	if info, err := first.Inspect(t.Context(), "k"); err != nil || info.Waiters != 5 || len(info.Holders) != 1 {
		t.Errorf("Inspect: %+v, %v; want a holder and 5 waiters", info, err)
	}
	for i, w := range waiters {
		ln.release(held)
		held = ln.got(fmt.Sprintf("waiter %d", i), w)
		if i == 0 {
			waiters = append(waiters, ln.wait(t.Context(), first))
			ln.queued(5)
		}
	}
	ln.release(held)
	ln.release(ln.got("the first holder", waiters[5]))
	ln.queued(0)
	if keys := do(t, ln.admin, "keys", "*").([]any); len(keys) != 1 {
		t.Errorf("there is %v at the server, want the counter alone", keys)
	}
}

// Who is called and comes too late has its place back.
func TestLateWaiterKeepsItsPlace(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	d := driveOn(t, dial(t, ln.server.Addr()))
	t.Cleanup(func() { d.Close(context.Background()) })
	g := acquire(t, d, ask("k"))
	late, other := ask("k"), ask("k")
	wait := func(r *driver.Request) { // and do not sleep
		t.Helper()
		err := lock.ErrHeld
		for errors.Is(err, lock.ErrHeld) { // it does not listen yet
			ctx, cancel := context.WithCancel(t.Context())
			r.Wait, r.Busy = true, cancel
			_, err = d.Acquire(ctx, r)
			cancel()
		}
		if !errors.Is(err, context.Canceled) && !errors.Is(err, driver.ErrAgain) { // it may just have been called
			t.Fatalf("Acquire: %v, want that it stands in the queue", err)
		}
	}
	first := func() string {
		return strings.Fields(do(t, ln.admin, "zrange", "holdfast:{k}:queue", 0, 0).([]any)[0].(string))[1]
	}
	wait(late)
	wait(other)
	release(t, g)
	do(t, ln.admin, "del", "holdfast:{k}:turn") // it is over
	g = acquire(t, d, ask("k"))
	wait(late)
	if first() != late.ID {
		t.Error("it has lost its place")
	}
	release(t, g)
	do(t, ln.admin, "del", "holdfast:{k}:turn")
	if first() != other.ID {
		t.Error("who was called stands in the queue, and has not asked again")
	}
	g = acquire(t, d, ask("k"))
	wait(late)
	if first() != late.ID {
		t.Error("it has lost its place")
	}
	for _, r := range []*driver.Request{late, other} {
		if err := d.Abandon(t.Context(), r); err != nil {
			t.Errorf("Abandon: %v", err)
		}
	}
	ln.queued(0)
	release(t, g)
}

// For as long as the head start of who is called nobody else gets the lock, and then
// anybody does. TryAcquire never says "held" of what is only kept.
func TestHeadStart(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	a, b := ln.locker(lock.Config{}), ln.locker(lock.Config{})
	dead := ln.deadWaiter(999)
	ln.release(ln.acquire(a))
	if turn := do(t, ln.admin, "get", "holdfast:{k}:turn"); turn != dead {
		t.Fatalf("it is the turn of %v, want %s", turn, dead)
	}
	left := time.Duration(do(t, ln.admin, "pttl", "holdfast:{k}:turn").(int64)) * time.Millisecond
	began := time.Now()
	h := ln.acquire(b)
	if took := time.Since(began); took < left-100*time.Millisecond {
		t.Errorf("another got the lock %v before the head start was over", left-took)
	}
	ln.release(h)
}

// deadWaiter puts one into the queue that is heard, and never comes. It returns its ID.
func (ln *line) deadWaiter(start int) string {
	ln.t.Helper()
	id := ask("k").ID
	locker := id[:16]
	sub := ln.admin.Subscribe(ln.t.Context(), "holdfast:wake:"+locker)
	ln.t.Cleanup(func() { sub.Close() })
	if _, err := sub.Receive(ln.t.Context()); err != nil {
		ln.t.Fatal(err)
	}
	ln.enqueue(locker, id, start)
	return id
}

// enqueue puts a request at the head of the queue, as if it had just asked.
func (ln *line) enqueue(locker, id string, start int) {
	asked := fmt.Sprintf("%d%03d", time.Now().UnixMilli(), start)
	do(ln.t, ln.admin, "zadd", "holdfast:{k}:asked", asked, locker+" "+id)
	do(ln.t, ln.admin, "pexpire", "holdfast:{k}:asked", 60000)
	do(ln.t, ln.admin, "zadd", "holdfast:{k}:queue", 1, locker+" "+id)
	do(ln.t, ln.admin, "pexpire", "holdfast:{k}:queue", 60000)
}

// A waiter that does not come costs those behind it its head start, and no more; one
// whose connection is gone costs nothing.
func TestDeadWaiters(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	held := ln.acquire(ln.locker(lock.Config{}))
	got := ln.wait(t.Context(), ln.locker(lock.Config{}))
	ln.queued(1)
	ln.deadWaiter(10)
	for range 100 {
		id := ask("k").ID
		ln.enqueue(id[:16], id, 999)
	}
	ln.queued(102)
	ln.release(held)
	ln.release(ln.got("the waiter behind the dead", got))
	ln.queued(0)
}

// A wait that ends leaves the queue, and if it is called at that moment the next one is.
func TestWaitersThatGiveUp(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	held := ln.acquire(ln.locker(lock.Config{}))
	ctx, cancel := context.WithCancel(t.Context())
	gone := ln.wait(ctx, ln.locker(lock.Config{}))
	ln.queued(1)
	got := ln.wait(t.Context(), ln.locker(lock.Config{}))
	ln.queued(2)
	cancel()
	<-gone
	ln.queued(1)
	ln.release(held)
	ln.release(ln.got("the waiter behind", got))
}

func TestAbandonPassesTheTurnOn(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	d := driveOn(t, dial(t, ln.server.Addr()))
	t.Cleanup(func() { d.Close(context.Background()) })
	acquire(t, d, ask("k"))
	slow := ask("k")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- wantPlace(ctx, d, slow) }()
	ln.queued(1)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Fatalf("Acquire: %v, want that it was cancelled", err)
	}
	got := ln.wait(t.Context(), ln.locker(lock.Config{}))
	ln.queued(2)
	// It is released, and it is the turn of the one that has given up.
	do(t, ln.admin, "del", "holdfast:{k}")
	do(t, ln.admin, "set", "holdfast:{k}:turn", slow.ID, "px", 60000)
	if err := d.Abandon(t.Context(), slow); err != nil {
		t.Errorf("Abandon: %v", err)
	}
	ln.release(ln.got("the next one", got))
	if n := do(t, ln.admin, "exists", "holdfast:{k}:turn"); n != int64(0) {
		t.Error("the turn was not given back")
	}
}

// Whatever becomes of the call, who waits asks again.
func TestCallsAreLost(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(*line){
		"the queue is deleted":     func(ln *line) { do(t, ln.admin, "del", "holdfast:{k}:queue") },
		"connections are cut":      func(ln *line) { do(t, ln.admin, "client", "kill", "type", "pubsub") },
		"everything is deleted":    func(ln *line) { do(t, ln.admin, "flushall") },
		"the lock is deleted":      func(ln *line) { do(t, ln.admin, "del", "holdfast:{k}") },
		"the lock runs out":        func(ln *line) { do(t, ln.admin, "pexpire", "holdfast:{k}", 1) },
		"the server was restarted": func(ln *line) { ln.server.Kill(); ln.server.Start() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ln := newLine(t)
			held := ln.acquire(ln.locker(lock.Config{}))
			got := ln.wait(t.Context(), ln.locker(lock.Config{}))
			ln.queued(1)
			lose(ln)
			if err := held.Release(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
				t.Errorf("Release: %v", err)
			}
			ln.release(ln.got("the waiter", got))
		})
	}
}

// As soon as there is a connection again, who waits asks.
func TestCallsLostWithTheConnection(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	p, err := conformance.NewProxy(ln.server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	l := lockerOn(t, dial(t, p.Addr()), redislock.Config{Config: lock.Config{TTL: ttl}})
	held := ln.acquire(ln.locker(lock.Config{}))
	got := ln.wait(t.Context(), l)
	ln.queued(1)
	p.Down()
	ln.release(held) // nobody hears it
	p.Heal()
	ln.release(ln.got("the waiter", got))
}

// Somebody who waits for long asks about once a second.
func TestWaitersAskSeldom(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	held := ln.acquire(ln.locker(lock.Config{}))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for range 10 {
		ln.wait(ctx, ln.locker(lock.Config{}))
	}
	ln.queued(10)
	do(t, ln.admin, "config", "resetstat")
	const seconds = 4
	time.Sleep(seconds * time.Second)
	if n := calls(t, ln.admin, "evalsha"); n > 10*(seconds+1)*5/4 {
		t.Errorf("10 waiters asked %d times in %d s, want about once a second each", n, seconds)
	}
	ln.release(held)
}

// A server may let a user take locks and not subscribe: then that is told, and who waits
// asks again and again.
func TestWaitWithoutSubscribing(t *testing.T) {
	t.Parallel()
	for _, less := range []string{"resetchannels", "-subscribe", "-publish"} {
		t.Run(less, func(t *testing.T) {
			t.Parallel()
			ln := newLine(t)
			do(t, ln.admin, "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", less)
			var mu sync.Mutex
			var warnings []string
			open := func() lock.Locker {
				c := dial(t, ln.server.Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "secret" })
				return lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl, Observe: func(_ context.Context, e lock.Event) {
					if e.Kind == lock.Warning {
						mu.Lock()
						defer mu.Unlock()
						warnings = append(warnings, e.Err.Error())
					}
				}}})
			}
			a, b := open(), open()
			for range 2 {
				held := ln.acquire(a)
				got := ln.wait(t.Context(), b)
				time.Sleep(50 * time.Millisecond)
				ln.release(held)
				ln.release(ln.got("the waiter", got))
			}
			if less == "-publish" {
				return // the others' releases are silent; that who waits may not know
			}
			eventually(t, "a warning", func() bool { mu.Lock(); defer mu.Unlock(); return len(warnings) > 0 })
			mu.Lock()
			defer mu.Unlock()
			if len(warnings) != 1 || !strings.Contains(warnings[0], "subscribe") || !strings.Contains(warnings[0], "comment of package") {
				t.Errorf("warnings %q, want one with the remedy", warnings)
			}
		})
	}
}

// What stands in place of the queue, or of a turn, is seen and left alone, and no
// release fails for it.
func TestForeignQueue(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	d := driveOn(t, dial(t, ln.server.Addr()))
	t.Cleanup(func() { d.Close(context.Background()) })
	for what, put := range map[string][]any{
		":queue hash":    {"hset", "holdfast:{k}:queue", "f", "v"},
		":queue string":  {"set", "holdfast:{k}:queue", "v"},
		":queue zset":    {"zadd", "holdfast:{k}:queue", 1, "v"},
		":asked hash":    {"hset", "holdfast:{k}:asked", "f", "v"},
		":asked string":  {"set", "holdfast:{k}:asked", "v"},
		":asked zset":    {"zadd", "holdfast:{k}:asked", 1, "v"},
		":asked expires": {"set", "holdfast:{k}:asked", "v", "px", 60000},
		":turn string":   {"set", "holdfast:{k}:turn", "v"},
		":turn expires":  {"set", "holdfast:{k}:turn", "v", "px", 60000},
		":turn hash":     {"hset", "holdfast:{k}:turn", "f", "v"},
	} {
		name := put[1].(string)
		g := acquire(t, d, ask("k"))
		do(t, ln.admin, put...)
		dump := do(t, ln.admin, "dump", name)
		waiting := ask("k")
		if strings.HasPrefix(what, ":queue") || strings.HasPrefix(what, ":asked") {
			if err := wantPlace(t.Context(), d, waiting); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: a wait: %v, want an error that names it", what, err)
			}
		}
		release(t, g)
		g, err := d.Acquire(t.Context(), ask("k"))
		if turn := strings.HasPrefix(what, ":turn") && what != ":turn hash"; turn != (err != nil && strings.Contains(err.Error(), name)) {
			t.Errorf("%s: Acquire: %v", what, err)
		}
		if err == nil {
			release(t, g)
		}
		if err := d.Abandon(t.Context(), waiting); err != nil {
			t.Errorf("%s: Abandon: %v", what, err)
		}
		if after := do(t, ln.admin, "dump", name); after != dump {
			t.Errorf("%s was changed", what)
		}
		do(t, ln.admin, "flushall")
	}
}

// A Locker listens from its first wait on, until it is closed.
func TestWhoListens(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	listening := func() int { return len(do(t, ln.admin, "pubsub", "channels").([]any)) }
	a, b := ln.locker(lock.Config{}), ln.locker(lock.Config{})
	held := ln.acquire(a)
	if _, err := b.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("TryAcquire: %v, want ErrHeld", err)
	}
	if n := listening(); n != 0 {
		t.Errorf("%d Lockers listen, and none waits", n)
	}
	got := ln.wait(t.Context(), b)
	ln.queued(1)
	if n := listening(); n != 1 {
		t.Errorf("%d Lockers listen, want the one that waits", n)
	}
	ln.release(held)
	ln.release(ln.got("the waiter", got))
	if err := b.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	eventually(t, "nobody listens", func() bool { return listening() == 0 })
}

// A request that was abandoned does not get into the queue any more.
func TestTombstoneKeepsOutOfTheQueue(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	d := driveOn(t, dial(t, ln.server.Addr()))
	t.Cleanup(func() { d.Close(context.Background()) })
	g := acquire(t, d, ask("k"))
	r := ask("k")
	if err := d.Abandon(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := wantPlace(t.Context(), d, r); err == nil || errors.Is(err, lock.ErrHeld) || errors.Is(err, driver.ErrAgain) {
		t.Errorf("a late Acquire gave %v, want that it was abandoned", err)
	}
	ln.queued(0)
	release(t, g)
}

// Many Lockers that take one lock from each other never hold it together, and all get it.
func TestHandOvers(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	const lockers, rounds = 16, 20
	var mu sync.Mutex
	inside := 0
	var tokens []lock.Token
	var all sync.WaitGroup
	for range lockers {
		l := ln.locker(lock.Config{})
		all.Go(func() {
			for range rounds {
				h, err := l.Acquire(t.Context(), "k", lock.Wait(30*time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				if inside++; inside != 1 {
					t.Errorf("%d hold the lock", inside)
				}
				token, _ := h.Token()
				tokens = append(tokens, token)
				inside--
				mu.Unlock()
				ln.release(h)
			}
		})
	}
	all.Wait()
	if !slices.IsSorted(tokens) {
		t.Error("tokens fell")
	}
	ln.queued(0)
}

// A Locker that is closed just as its waiter begins to listen blames nobody.
func TestCloseWarnsOfNothing(t *testing.T) {
	addr := testserver.Redis(t).Addr()
	a, err := lock.Open(t.Context(), "redis://"+addr)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	h, err := a.Acquire(t.Context(), "closing")
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		contended := make(chan struct{})
		b, err := lock.Open(t.Context(), "redis://"+addr, func(c *lock.Config) {
			c.Observe = func(_ context.Context, e lock.Event) {
				switch e.Kind {
				case lock.Contended:
					close(contended)
				case lock.Warning:
					t.Errorf("warned: %v", e.Err)
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() {
			_, err := b.Acquire(context.Background(), "closing")
			done <- err
		}()
		<-contended
		_ = b.Close()
		if err := <-done; err == nil {
			t.Error("granted what another holds")
		}
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
