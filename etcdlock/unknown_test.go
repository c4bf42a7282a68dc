package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// lateKV is a client's KV that can keep requests for later, as a network or a cluster in
// trouble does: their sender is told that there was no answer in time.
type lateKV struct {
	clientv3.KV

	mu   sync.Mutex
	keep int    // how many of the next writes are kept
	both bool   // they are carried out now as well
	then func() // what happens before their sender is told, if not nil
	kept []clientv3.Op
}

func makeLate(c *clientv3.Client) *lateKV {
	late := &lateKV{KV: c.KV}
	c.KV = late
	return late
}

func (k *lateKV) Do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	k.mu.Lock()
	keep, both, then := k.keep > 0, k.both, k.then
	if keep {
		k.keep--
		k.kept = append(k.kept, op)
	}
	k.mu.Unlock()
	if !keep || both {
		resp, err := k.KV.Do(ctx, op)
		if !keep {
			return resp, err
		}
	}
	if then != nil {
		then()
	}
	return clientv3.OpResponse{}, context.DeadlineExceeded
}

func (k *lateKV) next(n int, both bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keep, k.both = n, both
}

// deliver has what was kept carried out now.
func (k *lateKV) deliver(t *testing.T) int {
	t.Helper()
	k.mu.Lock()
	kept := k.kept
	k.kept = nil
	k.mu.Unlock()
	for _, op := range kept {
		if _, err := k.KV.Do(t.Context(), op); err != nil {
			t.Errorf("a late request: %v", err)
		}
	}
	return len(kept)
}

// What was abandoned comes to nothing, however late it comes: whether it was carried out
// before, and whether the name that it had is in use again.
func TestLateRequestMakesNoGhost(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	for _, wait := range []time.Duration{0, 100 * time.Millisecond} {
		for _, both := range []bool{false, true} {
			for _, lost := range []int{1, 2} { // the request; and the first that abandons it
				t.Run(fmt.Sprint("wait=", wait, ",both=", both, ",lost=", lost), func(t *testing.T) {
					c := dial(t, s.Addr())
					late := makeLate(c)
					l := lockerOn(t, c, etcdlock.Config{Config: lock.Config{TTL: 10 * time.Second}})
					other := lockerOn(t, direct, etcdlock.Config{})
					warmUp(t, l)
					late.next(lost, both)
					h, err := l.Acquire(t.Context(), "ghost", lock.Wait(wait))
					if wait == 0 {
						matches(t, "Acquire without an answer", err, lock.ErrUnavailable)
					} else if err == nil {
						matches(t, "Release", h.Release(t.Context()))
					}
					until(t, func() bool { return late.delivered(lost) && len(names(t, direct, "/holdfast/{ghost}/")) == 0 })
					late.deliver(t)
					if left := names(t, direct, "/holdfast/{ghost}/"); len(left) > 0 {
						t.Errorf("a late request left %q", left)
					}
					h, err = other.TryAcquire(t.Context(), "ghost")
					if err != nil {
						t.Fatal(err)
					}
					if err := h.Release(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
	}
}

// delivered says whether so many requests were kept.
func (k *lateKV) delivered(n int) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.kept) == n
}

// That there is no connection to be had when a request's time is over does not prove that the
// request was not sent.
func TestLateRequestOfLostConnection(t *testing.T) {
	s := testserver.Etcd(t, testserver.Durable())
	c := dial(t, s.Addr())
	late := makeLate(c)
	l := lockerOn(t, c, etcdlock.Config{Config: lock.Config{TTL: 30 * time.Second}})
	warmUp(t, l)
	late.next(1, false)
	late.then = func() {
		s.Kill()
		until(t, func() bool { return c.ActiveConnection().GetState() == connectivity.TransientFailure })
	}
	_, err := l.TryAcquire(t.Context(), "ghost")
	matches(t, "TryAcquire without an answer", err, lock.ErrUnavailable)
	s.Start()
	late.deliver(t)
	until(t, func() bool { return len(names(t, c, "/holdfast/{ghost}/")) == 0 })
}

func warmUp(t *testing.T, l lock.Locker) {
	t.Helper()
	h, err := l.TryAcquire(t.Context(), "warm-up")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A copy of a release, or of what abandons a request, does nothing to the next holder.
func TestLateRemovalHarmsNobody(t *testing.T) {
	s := testserver.Etcd(t)
	c := dial(t, s.Addr())
	late := makeLate(c)
	l := lockerOn(t, c, etcdlock.Config{Config: lock.Config{TTL: 10 * time.Second}})
	warmUp(t, l)
	acquire := func() lock.Handle {
		t.Helper()
		h, err := l.Acquire(t.Context(), "one", lock.Wait(5*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	for _, both := range []bool{false, true} {
		h := acquire()
		late.next(1, both)
		if err := h.Release(t.Context()); err != nil {
			t.Fatalf("Release whose answer was lost: %v", err)
		}
		h = acquire()
		if late.deliver(t) != 1 {
			t.Fatal("no release was kept")
		}
		stillHeld(t, c, h)
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}

		late.next(2, both) // the request, and the first that abandons it
		h = acquire()
		if late.deliver(t) != 2 {
			t.Fatal("the requests were not kept")
		}
		stillHeld(t, c, h)
		if err := h.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func stillHeld(t *testing.T, c *clientv3.Client, h lock.Handle) {
	t.Helper()
	time.Sleep(300 * time.Millisecond) // the watch over it would tell
	if err := h.Err(); err != nil {
		t.Errorf("the lock of the next holder: %v", err)
	}
	token, _ := h.Token()
	resp, err := c.Get(t.Context(), "/holdfast/{"+h.Key()+"}/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) != 1 || lock.Token(resp.Kvs[0].CreateRevision) != token {
		t.Errorf("the server has %v, want the lock with the token %d", resp.Kvs, token)
	}
}

// Others whose requests name the barrier that was moved for one are not disturbed.
func TestAbandoningDisturbsNobody(t *testing.T) {
	s := testserver.Etcd(t)
	c := dial(t, s.Addr())
	late := makeLate(c)
	l := lockerOn(t, c, etcdlock.Config{Config: lock.Config{TTL: 10 * time.Second}})
	warmUp(t, l)
	held, err := l.TryAcquire(t.Context(), "held")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 50 {
				h, err := l.Acquire(t.Context(), fmt.Sprint("key-", i), lock.Wait(10*time.Second))
				if err == nil {
					err = h.Release(t.Context())
				}
				if err != nil {
					t.Errorf("round %d: %v", n, err)
				}
				if i == 0 && n%5 == 0 {
					late.next(1, n%2 == 0)
				}
			}
		})
	}
	all.Wait()
	late.next(0, false)
	late.deliver(t)
	if err := held.Err(); err != nil {
		t.Error(err)
	}
	if err := held.Release(t.Context()); err != nil {
		t.Error(err)
	}
	until(t, func() bool {
		left := names(t, c, "/holdfast/{k")
		return len(left) == 0
	})
}

// The driver finds what an earlier call for the same request did, and keeps nothing on its
// books of what is over.
func TestSameRequestAgain(t *testing.T) {
	s := testserver.Etcd(t)
	c := dial(t, s.Addr())
	late := makeLate(c)
	d, err := etcdlock.NewDriver(c, etcdlock.Config{Config: lock.Config{TTL: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(context.Background()) })
	first := ask("one")
	g, err := d.Acquire(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	end := g.Lease().End
	second := ask("one")
	if _, err := d.Acquire(t.Context(), second); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("another request: %v, want ErrHeld", err)
	}
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := g.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Release again: %v, want ErrLost", err)
	}
	for _, wait := range []bool{false, true} {
		r := ask("one")
		r.Wait = wait
		late.next(1, true)
		if _, err := d.Acquire(t.Context(), r); err == nil || driver.LeavesNothing(err) {
			t.Errorf("Acquire whose answer was lost: %v, want an error that proves nothing", err)
		}
		g, err := d.Acquire(t.Context(), r)
		if err != nil {
			t.Fatalf("the same request again: %v", err)
		}
		if all := names(t, c, "/holdfast/{one}/"); len(all) != 1 {
			t.Errorf("after the same request again the server has %q", all)
		}
		if err := g.Release(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := d.Abandon(t.Context(), r); err != nil {
				t.Errorf("Abandon: %v", err)
			}
		}
		late.deliver(t)
	}
	if err := d.Abandon(t.Context(), ask("never sent")); err != nil {
		t.Errorf("Abandon of what was never sent: %v", err)
	}
	if requests, names := etcdlock.Booked(d); requests != 0 || names != 0 {
		t.Errorf("%d requests and %d names are on the books, and all is over", requests, names)
	}
	if all := names(t, c, "/holdfast/{one}/"); len(all) != 0 {
		t.Errorf("left at the server: %q", all)
	}
	if err := end(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := d.Acquire(t.Context(), ask("one")); err != nil {
		t.Errorf("after the end of a session: %v", err)
	}
}

// What could be neither abandoned nor ended with its session, for the server was not there, is
// taken off the books when nobody asks for it any more.
func TestUnsettledIsForgotten(t *testing.T) {
	const ttl = time.Second
	s := testserver.Etcd(t)
	c := dial(t, s.Addr())
	late := makeLate(c)
	d, err := etcdlock.NewDriver(c, etcdlock.Config{Config: lock.Config{TTL: ttl}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close(context.Background()) })
	acquire := func(key string) driver.Grant {
		t.Helper()
		g, err := d.Acquire(t.Context(), ask(key))
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	g := acquire("one")
	late.next(2, false)
	doubtful := ask("doubtful")
	if _, err := d.Acquire(t.Context(), doubtful); err == nil {
		t.Fatal("Acquire without an answer: nil")
	}
	if err := d.Abandon(t.Context(), doubtful); err == nil {
		t.Fatal("Abandon without an answer: nil")
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Lease().End(gone); err == nil {
		t.Fatal("End without an answer: nil")
	}
	ended := time.Now()
	next := acquire("two").Lease()
	if requests, _ := etcdlock.Booked(d); requests != 1 {
		t.Errorf("%d requests are on the books, and the engine may still settle 1", requests)
	}
	if err := next.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(ended.Add(5 * ttl)))
	acquire("three")
	if requests, _ := etcdlock.Booked(d); requests != 0 {
		t.Errorf("%d requests are on the books of a session that has long ended", requests)
	}
}

// A call that the engine has left behind may come when the driver is being closed: it begins
// nothing that Close would have to wait for. The race detector tells.
func TestAcquireDuringClose(t *testing.T) {
	s := testserver.Etcd(t)
	c := dial(t, s.Addr())
	for range 100 {
		d, err := etcdlock.NewDriver(c, etcdlock.Config{})
		if err != nil {
			t.Fatal(err)
		}
		var late sync.WaitGroup
		for i := range 4 {
			late.Go(func() { _, _ = d.Acquire(t.Context(), ask(fmt.Sprint("late-", i))) })
		}
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
		late.Wait()
		if _, err := d.Acquire(t.Context(), ask("later")); err == nil {
			t.Error("Acquire by a driver that is closed: nil")
		}
	}
}
