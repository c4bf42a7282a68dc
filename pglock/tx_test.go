package pglock_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/pglock"
)

func begin(t *testing.T, c *pgx.Conn, level pgx.TxIsoLevel) pgx.Tx {
	t.Helper()
	tx, err := c.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: level})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

func TestTransactionLocks(t *testing.T) {
	s := testserver.Postgres(t)
	l := mustOpen(t, s, "")
	db, err := sql.Open("pgx", urlOf(s, ""))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	conn := dial(t, s)
	for name, begin := range map[string]func() pglock.Tx{
		"pgx": func() pglock.Tx { return begin(t, conn, pgx.ReadCommitted) },
		"database/sql": func() pglock.Tx {
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			return pglock.SQLTx(tx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			tx := begin()
			if ok, err := pglock.TryAcquireTx(t.Context(), tx, "k"); !ok || err != nil {
				t.Fatalf("TryAcquireTx: %v, %v", ok, err)
			}
			if ok, err := pglock.TryAcquireTx(t.Context(), tx, "k"); !ok || err != nil {
				t.Fatalf("again: %v, %v", ok, err)
			}
			_, err := l.TryAcquire(t.Context(), "k")
			matches(t, "a Locker beside the transaction", err, lock.ErrHeld)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			h, err := l.TryAcquire(t.Context(), "k")
			if err != nil {
				t.Fatalf("after the transaction: %v", err)
			}
			tx = begin()
			if ok, err := pglock.TryAcquireTx(t.Context(), tx, "k"); ok || err != nil {
				t.Errorf("TryAcquireTx beside a Locker: %v, %v; want false, nil", ok, err)
			}
			got := make(chan error, 1)
			go func() { got <- pglock.AcquireTx(context.Background(), tx, "k") }()
			time.Sleep(50 * time.Millisecond)
			if len(got) > 0 {
				t.Error("AcquireTx did not wait")
			}
			if err := h.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := <-got; err != nil {
				t.Errorf("AcquireTx after the release: %v", err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
			if n := lockRows(t, dial(t, s)); n != 0 {
				t.Errorf("%d locks are left", n)
			}
		})
	}
}

func TestTransactionLocksShared(t *testing.T) {
	s := testserver.Postgres(t)
	a, b, c := begin(t, dial(t, s), ""), begin(t, dial(t, s), ""), begin(t, dial(t, s), "")
	for _, tx := range []pgx.Tx{a, b} {
		if ok, err := pglock.TryAcquireTx(t.Context(), tx, "k", pglock.TxShared(), pglock.TxNamespace("app")); !ok || err != nil {
			t.Errorf("shared: %v, %v", ok, err)
		}
	}
	if ok, err := pglock.TryAcquireTx(t.Context(), c, "k", pglock.TxNamespace("app")); ok || err != nil {
		t.Errorf("beside shared holders: %v, %v; want false, nil", ok, err)
	}
	if ok, err := pglock.TryAcquireTx(t.Context(), c, "k"); !ok || err != nil {
		t.Errorf("in another namespace: %v, %v", ok, err)
	}
	l := mustOpen(t, s, "namespace=app")
	if _, err := l.TryAcquire(t.Context(), "k", lock.Shared()); err != nil {
		t.Errorf("a Locker, shared: %v", err)
	}
}

// A transaction whose snapshot is older than the grant would not see what the last holder
// has written: it is measured here, and refused.
func TestTransactionLocksRefuseOldSnapshots(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "CREATE TABLE counter (v int); INSERT INTO counter VALUES (1)")
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		tx := begin(t, dial(t, s), level)
		for _, take := range []func() error{
			func() error { _, err := pglock.TryAcquireTx(t.Context(), tx, "k"); return err },
			func() error { return pglock.AcquireTx(t.Context(), tx, "k") },
		} {
			err := take()
			matches(t, string(level), err, errors.ErrUnsupported)
			if err == nil || !strings.Contains(err.Error(), "READ COMMITTED") {
				t.Errorf("%s: %v, want the remedy", level, err)
			}
		}
		if n := lockRows(t, admin); n != 0 {
			t.Errorf("%s: %d locks are held after a refusal", level, n)
		}
	}

	read := func(level pgx.TxIsoLevel) int {
		holder := begin(t, dial(t, s), pgx.ReadCommitted)
		if err := pglock.AcquireTx(t.Context(), holder, "k"); err != nil {
			t.Fatal(err)
		}
		waiter := begin(t, dial(t, s), level)
		got := make(chan error, 1)
		go func() {
			if level == pgx.ReadCommitted {
				got <- pglock.AcquireTx(context.Background(), waiter, "k")
				return
			}
			_, err := waiter.Exec(context.Background(), "SELECT pg_advisory_xact_lock($1)", pglock.Number("k"))
			got <- err
		}()
		until(t, func() bool { return value[int](t, admin, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 1 })
		if _, err := holder.Exec(t.Context(), "UPDATE counter SET v = v + 1"); err != nil {
			t.Fatal(err)
		}
		if err := holder.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		var v int
		if err := waiter.QueryRow(t.Context(), "SELECT v FROM counter").Scan(&v); err != nil {
			t.Fatal(err)
		}
		_ = waiter.Rollback(t.Context())
		return v
	}
	if v := read(pgx.ReadCommitted); v != 2 {
		t.Errorf("READ COMMITTED: the waiter read %d, want what the holder has written, 2", v)
	}
	if v := read(pgx.RepeatableRead); v != 2 {
		t.Errorf("REPEATABLE READ: the waiter read %d; if it reads 3, what is refused is safe", v)
	}
}

func TestTransactionLocksTellWhatIsWrong(t *testing.T) {
	s := testserver.Postgres(t)
	l := mustOpen(t, s, "")
	h, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Release(context.Background()) }()
	_, err = pglock.TryAcquireTx(t.Context(), nil, "k")
	matches(t, "no transaction", err, lock.ErrInvalid)
	tx := begin(t, dial(t, s), "")
	_, err = pglock.TryAcquireTx(t.Context(), tx, "")
	matches(t, "no key", err, lock.ErrInvalid)
	_, err = pglock.TryAcquireTx(t.Context(), tx, "k", pglock.TxNamespace("a\x00"))
	matches(t, "a bad namespace", err, lock.ErrInvalid)
	if _, err := tx.Exec(t.Context(), "SET LOCAL lock_timeout = '50ms'"); err != nil {
		t.Fatal(err)
	}
	matches(t, "a lock_timeout", pglock.AcquireTx(t.Context(), tx, "k"), lock.ErrHeld)

	tx = begin(t, dial(t, s), "")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	matches(t, "a context that ends", pglock.AcquireTx(ctx, tx, "k"), context.DeadlineExceeded)
	if err := h.Err(); err != nil {
		t.Errorf("the holder: %v", err)
	}
}
