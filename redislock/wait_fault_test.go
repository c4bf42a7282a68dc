package redislock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// network makes connections as the tests want them.
type network struct {
	noSubs atomic.Bool  // to subscribe is a request that never arrives
	deaf   atomic.Bool  // those that have subscribed hear nothing any more
	slow   atomic.Int64 // what those that have subscribed hear comes later by so much
	subs   atomic.Int32 // that were made
}

func (n *network) options(o *redis.Options) {
	var d net.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &link{Conn: c, network: n}, nil
	}
}

type link struct {
	net.Conn
	network    *network
	subscribed atomic.Bool
}

func (l *link) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte("\r\nsubscribe\r\n")) {
		l.subscribed.Store(true)
		l.network.subs.Add(1)
		if l.network.noSubs.Load() {
			return len(b), nil
		}
	}
	return l.Conn.Write(b)
}

func (l *link) Read(b []byte) (int, error) {
	for {
		n, err := l.Conn.Read(b)
		if err == nil && l.subscribed.Load() {
			if l.network.deaf.Load() {
				continue
			}
			time.Sleep(time.Duration(l.network.slow.Load()))
		}
		return n, err
	}
}

func (ln *line) lockerOver(n *network, more ...func(*redis.Options)) lock.Locker {
	ln.t.Helper()
	return lockerOn(ln.t, dial(ln.t, ln.server.Addr(), append(more, n.options)...), redislock.Config{Config: lock.Config{TTL: ttl}})
}

// A subscription that does not come about delays nobody: neither the end of a
// wait, nor the notice that the lock is free.
func TestWaitWhileItCannotSubscribe(t *testing.T) {
	t.Parallel()
	for _, ctx := range []context.Context{t.Context(), context.Background()} {
		ln := newLine(t)
		n := &network{}
		l := ln.lockerOver(n, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
		held := ln.acquire(ln.locker(lock.Config{}))
		n.noSubs.Store(true)
		began := time.Now()
		if _, err := l.Acquire(ctx, "k", lock.Wait(300*time.Millisecond)); err == nil {
			t.Error("Acquire of a lock that is held succeeded")
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Wait(300ms) took %v", took)
		}
		began = time.Now()
		time.AfterFunc(100*time.Millisecond, func() { _ = held.Release(context.Background()) })
		h, err := l.Acquire(ctx, "k", lock.Wait(20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 4*time.Second {
			t.Errorf("a lock that was free after 100ms was noticed after %v", took)
		}
		if n.subs.Load() == 0 {
			t.Error("it did not try to subscribe")
		}
		ln.release(h)
	}
}

// A connection on which the server says nothing any more is made again.
func TestDeafConnectionIsMadeAgain(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	n := &network{}
	l := ln.lockerOver(n)
	held := ln.acquire(ln.locker(lock.Config{}))
	got := ln.wait(t.Context(), l)
	ln.queued(1)
	n.deaf.Store(true)
	eventually(t, "it subscribes again", func() bool { return n.subs.Load() > 1 })
	n.deaf.Store(false)
	ln.release(held)
	ln.release(ln.got("the waiter", got))
}

// Who hears late, beside others who are quick, has its share all the same.
func TestLateWaiterIsNotStarved(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	n := &network{}
	late := ln.lockerOver(n)
	held := ln.acquire(ln.locker(lock.Config{}))
	got := ln.wait(t.Context(), late)
	ln.queued(1)
	ln.release(held)
	ln.release(ln.got("the late one", got)) // it has measured the way, which grows now
	n.slow.Store(int64(20 * time.Millisecond))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var rivals sync.WaitGroup
	defer rivals.Wait()
	defer cancel()
	var others atomic.Int32
	for range 4 {
		l := ln.locker(lock.Config{})
		rivals.Go(func() {
			for ctx.Err() == nil {
				if h, err := l.Acquire(ctx, "k"); err == nil {
					others.Add(1)
					_ = h.Release(context.Background())
				}
			}
		})
	}
	const rounds = 20
	for range rounds {
		h, err := late.Acquire(t.Context(), "k", lock.Wait(20*time.Second))
		if err != nil {
			t.Fatalf("while the others had the lock %d times: %v", others.Load(), err)
		}
		ln.release(h)
	}
	if n := others.Load(); n > rounds*4*50 {
		t.Errorf("it got the lock %d times, and each of 4 others %d times", rounds, n/4)
	}
}

// A wait that ends leaves nothing, not even a tombstone, when every question was answered.
func TestEndedWaitsLeaveNothing(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	held := ln.acquire(ln.locker(lock.Config{}))
	contended := make(chan struct{}, 1)
	l := ln.locker(lock.Config{Observe: func(_ context.Context, e lock.Event) {
		if e.Kind == lock.Contended {
			contended <- struct{}{}
		}
	}})
	for round := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		got := ln.wait(ctx, l)
		if <-contended; round == 0 {
			ln.queued(1) // it asked at intervals until it was able to listen
		}
		cancel()
		<-got
	}
	ln.queued(0)
	eventually(t, "the record of who asked is gone", func() bool { return do(t, ln.admin, "exists", "holdfast:{k}:asked") == int64(0) })
	// A question may have been under way in the first round.
	if names := do(t, ln.admin, "keys", "*:void:*").([]any); len(names) > 1 {
		t.Errorf("there are %d tombstones, and nothing was unknown", len(names))
	}
	ln.release(held)
}

// Waiters that were killed are forgotten while the lock is held, however long.
func TestSilentWaitersAreForgotten(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	l := ln.locker(lock.Config{})
	held := ln.acquire(l)
	for i := range 500 {
		entry := fmt.Sprintf("%016x %032x", i, i)
		do(t, ln.admin, "zadd", "holdfast:{k}:queue", i+1, entry)
		do(t, ln.admin, "zadd", "holdfast:{k}:asked", fmt.Sprintf("%d005", time.Now().Add(-10*time.Second).UnixMilli()), entry)
	}
	do(t, ln.admin, "pexpire", "holdfast:{k}:asked", 60000)
	if info, err := l.Inspect(t.Context(), "k"); err != nil || info.Waiters != 0 {
		t.Errorf("Inspect: %+v, %v; want nobody who waits", info, err)
	}
	got := ln.wait(t.Context(), ln.locker(lock.Config{}))
	ln.queued(1)
	if info, err := l.Inspect(t.Context(), "k"); err != nil || info.Waiters != 1 {
		t.Errorf("Inspect: %+v, %v; want one who waits", info, err)
	}
	ln.release(held)
	ln.release(ln.got("the waiter", got))
}

// A user may lack any right that a queue needs. That fails no release of a lock that was
// freed, and leaves no queue that keeps others from waiting.
func TestRightsThatAQueueNeeds(t *testing.T) {
	t.Parallel()
	for _, less := range []string{"-zadd", "-zrem", "-zrange", "-zscore", "-zrangebyscore", "-zcount", "-pexpire", "-publish", "-pttl"} {
		t.Run(less, func(t *testing.T) {
			t.Parallel()
			ln := newLine(t)
			do(t, ln.admin, "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", less)
			login := func(o *redis.Options) { o.Username, o.Password = "app", "secret" }
			app := lockerOn(t, dial(t, ln.server.Addr(), login), redislock.Config{Config: lock.Config{TTL: ttl}})
			d := driveOn(t, dial(t, ln.server.Addr(), login))
			t.Cleanup(func() { d.Close(context.Background()) })

			held := ln.acquire(ln.locker(lock.Config{}))
			r := ask("k")
			_ = wantPlace(t.Context(), d, r)
			if err := d.Abandon(t.Context(), r); err != nil {
				t.Errorf("Abandon: %v", err)
			}
			other := ln.locker(lock.Config{})
			_, err := other.Acquire(t.Context(), "k", lock.Wait(300*time.Millisecond))
			if !errors.Is(err, lock.ErrHeld) && !errors.Is(err, lock.ErrUnavailable) {
				t.Errorf("Acquire by a user who may do all: %v, want ErrHeld", err)
			}
			ln.release(held)

			h, err := app.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			got := ln.wait(t.Context(), other)
			ln.queued(1)
			if err := h.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
			ln.release(ln.got("the waiter", got))
		})
	}
}

// A lock that is only kept for one who waits is not told to be held, however often the
// turn is passed on.
func TestTurnsAreNotHolds(t *testing.T) {
	t.Parallel()
	ln := newLine(t)
	l := ln.locker(lock.Config{})
	do(t, ln.admin, "set", "holdfast:{k}:turn", ask("k").ID, "px", 300)
	passed := time.AfterFunc(100*time.Millisecond, func() {
		ln.admin.Set(context.Background(), "holdfast:{k}:turn", ask("k").ID, 600*time.Millisecond)
	})
	defer passed.Stop()
	h, err := l.TryAcquire(t.Context(), "k")
	if errors.Is(err, lock.ErrHeld) || err != nil {
		t.Fatalf("TryAcquire of a key that nobody holds: %v", err)
	}
	ln.release(h)
}
