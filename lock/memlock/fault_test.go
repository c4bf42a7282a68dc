package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

func ExampleServer_Stall() {
	server := memlock.NewServer()
	locker, err := server.Locker(lock.Config{TTL: 200 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close() }()
	h, err := locker.Acquire(context.Background(), "order-42")
	if err != nil {
		fmt.Println(err)
		return
	}
	heal := server.Stall(locker) // the network is cut, and nobody is told
	defer heal()
	<-h.Lost()
	fmt.Println("the program noticed")
	// Output: the program noticed
}

// An error before the server carries the request out, and one in place of its answer,
// look the same to the Locker, and neither leaves anything behind.
func TestFail(t *testing.T) {
	errInjected := errors.New("injected")
	for _, mode := range modes {
		for _, reply := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/reply=%v", mode.name, reply), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					server := memlock.NewServer(mode.opts...)
					a, b := locker(t, server), locker(t, server)
					server.Fail(func(op memlock.Op) error {
						if op.Kind == "acquire" && op.Key == "k" && op.Locker == a && op.Reply == reply {
							return errInjected
						}
						return nil
					})
					if _, err := a.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrUnavailable) || !errors.Is(err, errInjected) {
						t.Errorf("TryAcquire: %v, want ErrUnavailable with its cause", err)
					}
					synctest.Wait()
					if _, err := b.TryAcquire(t.Context(), "k"); err != nil {
						t.Errorf("by another: %v", err)
					}
					server.Fail(nil)
					if _, err := a.TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrHeld) {
						t.Errorf("afterwards: %v, want ErrHeld", err)
					}
				})
			})
		}
	}
}

// A session that the server ends takes all its grants with it, and the Locker goes on
// with another.
func TestSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := memlock.NewServer()
		l := locker(t, server)
		var handles []lock.Handle
		for _, key := range []string{"a", "b", "c"} {
			h, err := l.TryAcquire(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			handles = append(handles, h)
		}
		heal := server.Stall(l)
		<-handles[0].Lost()
		for _, h := range handles {
			if !errors.Is(h.Err(), lock.ErrLost) {
				t.Errorf("%s: %v", h.Key(), h.Err())
			}
		}
		heal()
		if _, err := l.Acquire(t.Context(), "a"); err != nil {
			t.Error(err)
		}
	})
}

func TestFaultOfStranger(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	memlock.NewServer().Stall(nil)
}

func TestLockerChecksItsConfiguration(t *testing.T) {
	if _, err := memlock.NewServer().Locker(lock.Config{TTL: -1}); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("Locker: %v, want ErrInvalid", err)
	}
}

func locker(t *testing.T, server *memlock.Server) lock.Locker {
	t.Helper()
	l, err := server.Locker(lock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}
