package zklock_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// A waiter whose node was deleted looks, when those in front of it have gone, whether it is in line:
// what it is granted, the servers have.
func TestWaiterLosesItsNode(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	l, c := lockerOn(t, zklock.Config{}, server.Addr()), lockerOn(t, zklock.Config{}, server.Addr())
	direct := dial(t, server.Addr())
	for range 3 {
		held := acquire(t, c, "vanish")
		got := make(chan lock.Handle, 1)
		go func() {
			h, err := l.Acquire(t.Context(), "vanish")
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			got <- h
		}()
		until(t, "two in line", func() bool { return len(inLine(t, direct, "vanish")) == 2 })
		last := slices.MaxFunc(inLine(t, direct, "vanish"), byNumber)
		if err := direct.Delete("/holdfast/lock/vanish/"+last, -1); err != nil {
			t.Fatal(err)
		}
		release(t, held)
		h := <-got
		if h == nil {
			return
		}
		if names := inLine(t, direct, "vanish"); len(names) != 1 {
			t.Errorf("the waiter has the lock, and in line are %q", names)
		}
		if _, err := c.TryAcquire(t.Context(), "vanish"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("another: %v, want ErrHeld", err)
		}
		_ = h.Release(t.Context())
	}
}

// byNumber compares names of nodes by the numbers at their ends.
func byNumber(a, b string) int {
	return strings.Compare(a[strings.LastIndex(a, "-"):], b[strings.LastIndex(b, "-"):])
}
