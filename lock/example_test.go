package lock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// A job that every replica is scheduled to start, and one of them runs.
func Example() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, "mem:replicas") // or redis://localhost:6379/0
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	err = lock.Do(ctx, locker, "nightly-report", func(ctx context.Context, h lock.Handle) error {
		token, _ := h.Token()
		fmt.Printf("writing the report with token %d\n", token)
		return ctx.Err() // ctx ends if the lock is lost
	}, lock.Wait(0))
	switch {
	case errors.Is(err, lock.ErrHeld):
		fmt.Println("another replica is at it")
	case err != nil:
		log.Fatal(err)
	}
	// Output: writing the report with token 1
}

// A worker that holds the lock by hand, and stops as soon as it is lost.
func ExampleHandle() {
	ctx := context.Background()
	server := memlock.NewServer()
	locker, err := server.Locker(lock.Config{TTL: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	h, err := locker.Acquire(ctx, "order-42")
	if err != nil {
		log.Fatal(err)
	}
	server.Revoke("order-42") // an operator deletes the lock
	select {
	case <-h.Lost():
		fmt.Println("stop:", errors.Is(h.Err(), lock.ErrLost))
	case <-time.After(10 * time.Second):
		fmt.Println("done")
	}
	fmt.Println("released:", h.Release(ctx) == nil)
	// Output:
	// stop: true
	// released: false
}

// "Who holds it?"
func ExampleLocker_inspect() {
	ctx := context.Background()
	locker, err := memlock.NewServer().Locker(lock.Config{Owner: "web-3"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	if _, err := locker.TryAcquire(ctx, "import"); err != nil {
		log.Fatal(err)
	}
	info, err := locker.Inspect(ctx, "import")
	if err != nil {
		log.Fatal(err)
	}
	for _, holder := range info.Holders {
		fmt.Printf("%s is held by %s with token %d\n", info.Key, holder.Owner, holder.Token)
	}
	// Output: import is held by web-3 with token 1
}

// A resource that refuses writes with a token smaller than the greatest it has
// accepted is safe from a holder that was paused and does not know of its loss.
func ExampleToken() {
	var accepted lock.Token
	write := func(token lock.Token, text string) {
		if token < accepted {
			fmt.Println("refused:", text)
			return
		}
		accepted = token
		fmt.Println("written:", text)
	}
	ctx := context.Background()
	server := memlock.NewServer()
	locker, err := server.Locker(lock.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()

	paused, _ := locker.Acquire(ctx, "ledger")
	server.Revoke("ledger") // its lease ran out while it was paused
	next, err := locker.Acquire(ctx, "ledger")
	if err != nil {
		log.Fatal(err)
	}
	token, _ := next.Token()
	write(token, "by the next holder")
	late, _ := paused.Token()
	write(late, "by the one that woke up")
	// Output:
	// written: by the next holder
	// refused: by the one that woke up
}

// Services that need a promise check for it when they start.
func ExampleRequire() {
	locker, err := memlock.NewServer().Locker(lock.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	fmt.Println(lock.Require(locker, lock.Fencing|lock.Leased))
	// Output: <nil>
}
