package memlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// Callers that find no session at the same time, or nearly so, end up on one that is
// kept alive.
func TestSessionOpenedAtOnce(t *testing.T) {
	for round := range 100 {
		synctest.Test(t, func(t *testing.T) {
			server := memlock.NewServer()
			l := locker(t, server)
			var handles [8]lock.Handle
			var wg sync.WaitGroup
			for i := range handles {
				wg.Go(func() {
					time.Sleep(time.Duration(i*(round%4)) * 100 * time.Microsecond)
					h, err := l.TryAcquire(t.Context(), fmt.Sprint(i))
					if err != nil {
						t.Error(err)
					}
					handles[i] = h
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
			for _, h := range handles[1:7] {
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
			time.Sleep(4 * lock.DefaultTTL)
			for _, h := range []lock.Handle{handles[0], handles[7]} {
				if err := h.Err(); err != nil {
					t.Errorf("the server is healthy: %v", err)
				}
			}
		})
	}
}

// A request that waits may come again on the next session, while the server still has
// its place on the last one: what it is granted does not end with that.
func TestRequestOnTwoSessions(t *testing.T) {
	const ttl = lock.DefaultTTL
	for after := ttl - 600*time.Millisecond; after < ttl; after += 20 * time.Millisecond {
		t.Run(after.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := memlock.NewServer()
				first, waiter, next := locker(t, server), locker(t, server), locker(t, server)
				began := time.Now()
				h, err := first.Acquire(t.Context(), "k")
				if err != nil {
					t.Fatal(err)
				}
				// The waiter takes its session for over, and the server does not.
				server.Fail(func(op memlock.Op) error {
					at := time.Since(began)
					if op.Locker == waiter && (op.Kind == "renew" && op.Reply && at < ttl || op.Kind == "end" && at < ttl+time.Second) {
						return errLost
					}
					return nil
				})
				got := make(chan lock.Handle, 1)
				go func() {
					h, err := waiter.Acquire(t.Context(), "k")
					if err != nil {
						t.Error(err)
					}
					got <- h
				}()
				time.Sleep(ttl - time.Second)
				server.Slow(waiter, 100*time.Millisecond)
				time.Sleep(after - (ttl - time.Second)) // about when it opens the next one
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
				second := <-got
				if second == nil {
					return
				}
				time.Sleep(5 * time.Second)
				if _, err := next.TryAcquire(t.Context(), "k"); err == nil && second.Err() == nil {
					t.Error("held twice")
				}
			})
		})
	}
}

// A session that is over before the answer to its opening has arrived is replaced.
func TestSessionOverBeforeItIsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = lock.DefaultTTL
		server := memlock.NewServer()
		l := locker(t, server)
		heal := server.Slow(l, ttl+2*time.Second)
		time.AfterFunc(ttl+time.Second, heal)
		ctx, cancel := context.WithTimeout(t.Context(), 4*ttl)
		defer cancel()
		if _, err := l.Acquire(ctx, "a"); err != nil {
			t.Error(err)
		}
		if _, err := l.TryAcquire(t.Context(), "b"); err != nil {
			t.Error(err)
		}
	})
}
