package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/pglock"
)

// report does the nightly report, with the token in each of its writes.
func report(ctx context.Context, h lock.Handle) error {
	token, _ := h.Token()
	fmt.Println("reporting with token", token)
	return ctx.Err()
}

// A program that is told by a URL where to lock: importing the package is enough.
func Example_open() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, os.Getenv("LOCK_URL")) // postgres://app:password@localhost:5432/app?ttl=10s
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := lock.Do(ctx, locker, "nightly-report", report); err != nil {
		log.Print(err)
	}
}

// A program that has a pool already.
func ExampleNew() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	locker, err := pglock.New(pool, pglock.Config{Namespace: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := lock.Do(ctx, locker, "nightly-report", report); err != nil {
		log.Print(err)
	}
}

// Work on rows of the same database is safest under a lock of the transaction that writes
// them.
func ExampleTryAcquireTx() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	errBusy := errors.New("another is at it")
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		ok, err := pglock.TryAcquireTx(ctx, tx, "close-month")
		if err != nil {
			return err
		}
		if !ok {
			return errBusy
		}
		_, err = tx.Exec(ctx, "UPDATE ledger SET closed = true WHERE month = $1", "2026-11")
		return err
	})
	if err != nil && !errors.Is(err, errBusy) {
		log.Print(err)
	}
}
