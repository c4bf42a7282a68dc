package pglock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/lock"
)

// Tx is a transaction in which a lock can be taken that it keeps to its end: a [pgx.Tx],
// or what [SQLTx] makes of one of database/sql.
type Tx interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// SQLTx makes a [Tx] of a transaction of database/sql, with any driver for PostgreSQL that
// knows the placeholders $1 and $2.
func SQLTx(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

func (t sqlTx) Commit(context.Context) error   { return t.tx.Commit() }
func (t sqlTx) Rollback(context.Context) error { return t.tx.Rollback() }

// TxOption changes how a lock is taken in a transaction.
type TxOption func(*txLock)

// TxNamespace names the namespace, as Config.Namespace does for a Locker; "" means the
// default.
func TxNamespace(namespace string) TxOption {
	return func(t *txLock) {
		if namespace != "" {
			t.namespace = namespace
		}
	}
}

// TxShared takes the lock with every other shared holder, against every exclusive one.
func TxShared() TxOption { return func(t *txLock) { t.shared = true } }

// TryAcquireTx takes the lock on key for the rest of the transaction tx, or says that it
// could not: somebody holds it, in a transaction or by a Locker of the same namespace. It
// is released by the end of the transaction, and by nothing else; or by a rollback to a
// savepoint that was made before it was taken.
//
// It has no handle, no token and no loss to tell of: what the transaction writes is
// written if the lock was held to the end, and not if it was not, for both end with the
// connection. So it is the right lock for what is in the same database, and for nothing
// else. A transaction that holds the lock takes it again.
//
// The transaction must be READ COMMITTED, the default. One that is REPEATABLE READ or
// SERIALIZABLE would go on seeing what its snapshot has, which may be older than the lock,
// and so than what its last holder has written: it is refused with an error that wraps
// [errors.ErrUnsupported], and nothing is held. It works through a pooler in any mode that
// keeps a transaction together.
func TryAcquireTx(ctx context.Context, tx Tx, key string, opts ...TxOption) (bool, error) {
	t, err := newTxLock(key, opts)
	if err != nil {
		return false, err
	}
	call := "CASE WHEN " + t.function("pg_try_advisory_xact_lock") + " THEN 1 ELSE 0 END"
	return t.take(ctx, tx, call)
}

// AcquireTx is [TryAcquireTx] for one who waits until the lock is free: in the server's
// queue, in order. The wait is part of the transaction, with all that this means: if ctx
// ends it, the transaction is over, as it is with any other statement; the transaction's
// lock_timeout and statement_timeout end it, too; while it lasts, CREATE INDEX CONCURRENTLY
// waits for it; and transactions that wait for each other are found out by the server, which
// ends one of them.
func AcquireTx(ctx context.Context, tx Tx, key string, opts ...TxOption) error {
	t, err := newTxLock(key, opts)
	if err != nil {
		return err
	}
	call := "CASE WHEN " + t.function("pg_advisory_xact_lock") + " IS NOT NULL THEN 1 END"
	_, err = t.take(ctx, tx, call)
	return err
}

// txLock is one call.
type txLock struct {
	key       string
	namespace string
	shared    bool
}

func newTxLock(key string, opts []TxOption) (*txLock, error) {
	t := &txLock{key: key, namespace: defaultNamespace}
	if err := lock.CheckKey(key); err != nil {
		return nil, t.wrap(err)
	}
	for _, opt := range opts {
		opt(t)
	}
	if err := checkNamespace(t.namespace); err != nil {
		return nil, t.wrap(err)
	}
	return t, nil
}

func (t *txLock) function(name string) string {
	if t.shared {
		name += "_shared"
	}
	return "pg_catalog." + name + "($1::bigint)"
}

// take takes the lock, unless the transaction's snapshot may be older than that.
func (t *txLock) take(ctx context.Context, tx Tx, call string) (bool, error) {
	if tx == nil {
		return false, t.wrap(fmt.Errorf("%w: the transaction is nil", lock.ErrInvalid))
	}
	// In a branch of a CASE that is not taken, nothing is called.
	query := "SELECT CASE WHEN pg_catalog.current_setting('transaction_isolation') IN ('read committed', 'read uncommitted') " +
		"THEN " + call + " ELSE -1 END"
	var got int
	if err := tx.QueryRow(ctx, query, number(t.namespace, t.key)).Scan(&got); err != nil {
		if codeOf(err) == codeLockTimeout {
			err = fmt.Errorf("%w: %w", lock.ErrHeld, err)
		}
		return false, t.wrap(err)
	}
	if got < 0 {
		return false, t.wrap(errSnapshot)
	}
	return got == 1, nil
}

var errSnapshot = fmt.Errorf("the transaction is REPEATABLE READ or SERIALIZABLE, and sees what was there before the lock was: "+
	"begin it as READ COMMITTED, or take the lock by a Locker and begin it then: %w", errors.ErrUnsupported)

func (t *txLock) wrap(err error) error {
	key := t.key
	if len(key) > 128 {
		key = key[:128] + "…"
	}
	return fmt.Errorf("holdfast: acquire %q in a transaction: %w", key, err)
}
