package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// proxied returns a proxy for a server.
func proxied(t *testing.T, addr string) *conformance.Proxy {
	t.Helper()
	p, err := conformance.NewProxy(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// inLine returns the names of the nodes below a key's.
func inLine(t testing.TB, c *zk.Conn, key string) []string {
	t.Helper()
	dir := "/holdfast/lock/" + key
	if _, err := c.Sync(dir); err != nil {
		t.Fatal(err)
	}
	names, _, err := c.Children(dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	return names
}

// A node was made and the answer lost: the same session finds it again, and has it as its
// place in line.
func TestCreateReplyLost(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	p := proxied(t, server.Addr())
	l := lockerOn(t, zklock.Config{}, p.Addr())
	c := lockerOn(t, zklock.Config{}, server.Addr())
	direct := dial(t, server.Addr())
	release(t, acquire(t, l, "warm-up"))
	for i := range 5 {
		key := fmt.Sprint("z2-", i)
		release(t, acquire(t, c, key)) // the lock's node is there, and gives number 0
		struck := p.LoseReplyFunc(isRequest(opMulti))
		h := acquire(t, l, key)
		<-struck
		names := inLine(t, direct, key)
		if len(names) != 1 || !strings.HasSuffix(names[0], "-0000000001") {
			t.Errorf("in line are %q, want the one node that was made first", names)
		}
		_, stat, err := direct.Get("/holdfast/lock/" + key + "/" + names[0])
		if token, _ := h.Token(); err != nil || token != lock.Token(stat.Czxid) {
			t.Errorf("the token is %d, and the node was made by %d (%v)", token, stat.Czxid, err)
		}
		if _, err := c.TryAcquire(t.Context(), key); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("another: %v, want ErrHeld", err)
		}
		release(t, h)
		if names := inLine(t, direct, key); len(names) != 0 {
			t.Errorf("after the release, in line are %q", names)
		}
		h, err = c.TryAcquire(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		release(t, h)
	}
}

// The same, and the caller gives up before there is a connection again: what was made goes
// as soon as there is one, and not with the session.
func TestCreateReplyLostAndGivenUp(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	p := proxied(t, server.Addr())
	l := lockerOn(t, zklock.Config{}, p.Addr())
	direct := dial(t, server.Addr())
	kept := acquire(t, l, "kept")
	for i := range 5 {
		key := fmt.Sprint("z2-", i)
		release(t, acquire(t, l, key)) // the lock's node is there
		ctx, cancel := context.WithCancel(t.Context())
		struck := p.LoseReplyFunc(isRequest(opMulti))
		done := make(chan error, 1)
		go func() {
			_, err := l.Acquire(ctx, key)
			done <- err
		}()
		<-struck
		p.Refuse()
		if names := inLine(t, direct, key); len(names) != 1 {
			t.Errorf("in line are %q, want one", names)
		}
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("given up: %v", err)
		}
		p.Heal()
		healed := time.Now()
		until(t, "the end of what was made", func() bool { return len(inLine(t, direct, key)) == 0 })
		if took := time.Since(healed); took > ttl*3/4 {
			t.Errorf("it was left for %v", took)
		}
	}
	if err := kept.Err(); err != nil { // the session has lived on
		t.Error(err)
	}
}

// Connections break while a waiter looks at the line, and while it watches the one in front.
func TestLookReplyLost(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	p := proxied(t, server.Addr())
	l := lockerOn(t, zklock.Config{}, p.Addr())
	c := lockerOn(t, zklock.Config{}, server.Addr())
	direct := dial(t, server.Addr())
	release(t, acquire(t, l, "warm-up"))
	for _, code := range []uint32{opChildren, opGetData, opChildren, opGetData} {
		held := acquire(t, c, "z2")
		struck := p.LoseReplyFunc(isRequest(code))
		got := make(chan lock.Handle, 1)
		go func() {
			h, err := l.Acquire(t.Context(), "z2")
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			got <- h
		}()
		<-struck
		until(t, "two in line", func() bool { return len(inLine(t, direct, "z2")) == 2 })
		time.Sleep(50 * time.Millisecond) // it looks again
		if names := inLine(t, direct, "z2"); len(names) != 2 {
			t.Errorf("in line are %q, want two", names)
		}
		release(t, held)
		if h := <-got; h != nil {
			release(t, h)
		}
	}
}

// Those who gave up are not in line, whenever their connection broke.
func TestGaveUpIsNotInLine(t *testing.T) {
	server := testserver.ZooKeeper(t)
	p := proxied(t, server.Addr())
	a := lockerOn(t, zklock.Config{}, server.Addr())
	b := lockerOn(t, zklock.Config{}, p.Addr())
	c := lockerOn(t, zklock.Config{}, server.Addr())
	direct := dial(t, server.Addr())
	release(t, acquire(t, b, "warm-up"))
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	for i := range rounds {
		h := acquire(t, a, "z3")
		cut := make(chan struct{})
		go func() {
			defer close(cut)
			time.Sleep(time.Duration(i%20) * time.Millisecond / 4)
			p.Cut()
			p.Heal()
		}()
		if got, err := b.TryAcquire(t.Context(), "z3"); err == nil {
			t.Fatalf("round %d: got %v, and it is held", i, got)
		}
		<-cut
		release(t, h)
		next, err := c.Acquire(t.Context(), "z3", lock.Wait(ttl*3/4)) // sooner than a session ends
		if err != nil {
			t.Fatalf("round %d: the next: %v", i, err)
		}
		release(t, next)
	}
	for range 2 { // a wait that ends while there is no connection
		h := acquire(t, a, "z3")
		down := time.AfterFunc(100*time.Millisecond, p.Refuse)
		cut := time.AfterFunc(110*time.Millisecond, p.Cut)
		_, err := b.Acquire(t.Context(), "z3", lock.Wait(400*time.Millisecond))
		if err == nil {
			t.Fatal("got a lock that is held")
		}
		down.Stop()
		cut.Stop()
		release(t, h)
		p.Heal()
		next, err := c.Acquire(t.Context(), "z3", lock.Wait(ttl*3/4))
		if err != nil {
			t.Fatalf("the next: %v", err)
		}
		release(t, next)
	}
	until(t, "an empty line", func() bool { return len(inLine(t, direct, "z3")) == 0 })
}

// A lock's node goes while two want the lock, again and again: as servers do with empty
// containers, and operators with what looks unused.
func TestLockNodeVanishes(t *testing.T) {
	server := testserver.ZooKeeper(t)
	direct := dial(t, server.Addr())
	ctx, stop := context.WithCancel(t.Context())
	var deleting sync.WaitGroup
	deleted := 0
	deleting.Go(func() {
		for ctx.Err() == nil {
			if direct.Delete("/holdfast/lock/z4", -1) == nil {
				deleted++
			}
		}
	})
	var inside, rounds int
	var working sync.WaitGroup
	for range 2 {
		l := lockerOn(t, zklock.Config{}, server.Addr())
		working.Go(func() {
			for range 250 {
				h, err := l.Acquire(t.Context(), "z4", lock.Wait(20*time.Second))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				inside++ // the race detector watches
				if inside != 1 {
					t.Errorf("%d are inside", inside)
				}
				rounds++
				inside--
				if err := h.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
					return
				}
			}
		})
	}
	working.Wait()
	stop()
	deleting.Wait()
	if rounds != 500 || deleted == 0 {
		t.Errorf("%d rounds, and the node was deleted %d times", rounds, deleted)
	}
}

// removeAll removes a node with all below it.
func removeAll(t testing.TB, c *zk.Conn, path string) {
	t.Helper()
	names, _, err := c.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	for _, name := range names {
		removeAll(t, c, path+"/"+name)
	}
	if err := c.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) && !errors.Is(err, zk.ErrNotEmpty) {
		t.Fatal(err)
	}
}

// Somebody removes everything: the holder is told, and the waiter gets into line again.
func TestRootVanishes(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	direct := dial(t, server.Addr())
	a, b := lockerOn(t, zklock.Config{}, server.Addr()), lockerOn(t, zklock.Config{}, server.Addr())
	for range 3 {
		h := acquire(t, a, "z4")
		got := make(chan lock.Handle, 1)
		go func() {
			h, err := b.Acquire(t.Context(), "z4", lock.Wait(4*ttl))
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			got <- h
		}()
		until(t, "two in line", func() bool { return len(inLine(t, direct, "z4")) == 2 })
		removeAll(t, direct, "/holdfast")
		select {
		case <-h.Lost():
		case <-time.After(ttl):
			t.Error("the holder was not told")
		}
		matches(t, "Release", h.Release(t.Context()), lock.ErrLost)
		next := <-got
		if next == nil {
			return
		}
		_ = next.Release(t.Context()) // it may have met the removal, too
		next = acquire(t, b, "z4")
		time.Sleep(ttl / 2) // heartbeats make their node again
		if err := next.Err(); err != nil {
			t.Errorf("the next: %v", err)
		}
		release(t, next)
	}
}

// A root that does not exist is made, however deep, and nothing is made outside it.
func TestRoot(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	direct := dial(t, server.Addr())
	l, err := lock.Open(t.Context(), fmt.Sprintf("zk://%s/apps/billing%%20x/locks?ttl=%v&tick=%v", server.Addr(), ttl, tick))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, key := range []string{"..", "../x", "/zookeeper", "a/b"} {
		release(t, acquire(t, l, key))
	}
	top, _, err := direct.Children("/")
	slices.Sort(top)
	if err != nil || !slices.Equal(top, []string{"apps", "zookeeper"}) {
		t.Errorf("at the top are %q, %v", top, err)
	}
	locks, _, err := direct.Children("/apps/billing x/locks/lock")
	slices.Sort(locks)
	if err != nil || !slices.Equal(locks, []string{"%2E.", "%2Fzookeeper", "..%2Fx", "a%2Fb"}) {
		t.Errorf("the locks' nodes are %q, %v", locks, err)
	}
	if text, _, err := direct.Get("/apps/billing x/locks/lock/a%2Fb"); err != nil || string(text) != "a/b" {
		t.Errorf("the lock's node says %q, %v", text, err)
	}
}

// Strangers among the children of a lock's node are ignored, and left alone.
func TestForeignChildren(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	direct := dial(t, server.Addr())
	a, b := lockerOn(t, zklock.Config{}, server.Addr()), lockerOn(t, zklock.Config{}, server.Addr())
	release(t, acquire(t, a, "z5"))
	dir := "/holdfast/lock/z5/"
	acl := zk.WorldACL(zk.PermAll)
	foreign := []string{
		"content", "a-b", "lock-", "x-lock-99999999999", "write-", "-0000000000", "0000000000", "read-x-y-0000000000",
		"write-0123456789abcdef0123456789abcdef-0100a1b2c3d40000-", "_c_0123456789abcdef0123456789abcdef-lock-0000000000",
	}
	for _, name := range foreign {
		if _, err := direct.Create(dir+name, []byte(name), zk.FlagPersistent, acl); err != nil {
			t.Fatal(err)
		}
	}
	h := acquire(t, a, "z5")
	if _, err := b.TryAcquire(t.Context(), "z5"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("another: %v, want ErrHeld", err)
	}
	info, err := b.Inspect(t.Context(), "z5")
	if token, _ := h.Token(); err != nil || len(info.Holders) != 1 || info.Holders[0].Token != token || info.Waiters != 0 {
		t.Errorf("Inspect: %+v, %v", info, err)
	}
	release(t, h)
	for _, name := range foreign {
		if text, _, err := direct.Get(dir + name); err != nil || string(text) != name {
			t.Errorf("%q: %q, %v", name, text, err)
		}
	}

	// In our own form, with numbers of the other end: they count as behind whoever comes now.
	session := direct.SessionID()
	for _, seq := range []int32{1<<31 - 2, -1 << 31} {
		id := fmt.Sprintf("%032x", rand.Uint64())
		far := dir + zklock.MemberName(id, session, seq)
		if _, err := direct.Create(far, nil, zk.FlagEphemeral, acl); err != nil {
			t.Fatal(err)
		}
		h, err := a.TryAcquire(t.Context(), "z5")
		if err != nil {
			t.Fatalf("with one of number %d in line: %v", seq, err)
		}
		if _, err := b.TryAcquire(t.Context(), "z5"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("another, with one of number %d in line: %v, want ErrHeld", seq, err)
		}
		release(t, h)
		if err := direct.Delete(far, -1); err != nil {
			t.Error(err)
		}
	}
	// And one in front is waited for, whoever has made it.
	front := dir + zklock.MemberName(fmt.Sprintf("%032x", 7), session, 0)
	if _, err := direct.Create(front, nil, zk.FlagEphemeral, acl); err != nil {
		t.Fatal(err)
	}
	if _, err := a.TryAcquire(t.Context(), "z5"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("with one in front: %v, want ErrHeld", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { _ = direct.Delete(front, -1) })
	release(t, acquire(t, a, "z5"))

	// The text of the lock's node is ours; whatever else was there does no harm.
	if _, err := direct.Set(strings.TrimSuffix(dir, "/"), []byte("mine"), -1); err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, b, "z5"))
}

// Before the numbers of a lock's node run out, it is made anew, when nobody is in line.
func TestSequenceEnds(t *testing.T) {
	zklock.SetLastSequence(t, 5)
	server := testserver.ZooKeeper(t)
	a, b := lockerOn(t, zklock.Config{}, server.Addr()), lockerOn(t, zklock.Config{}, server.Addr())
	var inside int
	var last lock.Token
	var working sync.WaitGroup
	for _, l := range []lock.Locker{a, b} {
		working.Go(func() {
			for range 25 {
				h, err := l.Acquire(t.Context(), "z5", lock.Wait(20*time.Second))
				if err != nil {
					t.Errorf("Acquire: %v", err)
					return
				}
				inside++
				if inside != 1 {
					t.Errorf("%d are inside", inside)
				}
				token, _ := h.Token()
				if token <= last {
					t.Errorf("token %d after %d", token, last)
				}
				last = token
				inside--
				if err := h.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
			}
		})
	}
	working.Wait()

	// A holder is not disturbed.
	h := acquire(t, a, "held")
	for range 8 {
		if _, err := b.TryAcquire(t.Context(), "held"); err == nil {
			t.Fatal("got a lock that is held")
		}
	}
	if err := h.Err(); err != nil {
		t.Error(err)
	}
	release(t, h)
	release(t, acquire(t, b, "held"))
}
