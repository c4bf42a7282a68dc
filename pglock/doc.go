// Package pglock keeps locks in PostgreSQL, version 12 or later: its advisory locks.
//
//	locker, err := pglock.New(pool, pglock.Config{}) // a *pgxpool.Pool
//	if err != nil {
//		return err
//	}
//	defer locker.Close() // the pool stays open
//	err = lock.Do(ctx, locker, "nightly-report", report)
//
// A program that is told by a URL where to lock imports the package for its schemes:
//
//	locker, err := lock.Open(ctx, "postgres://app:password@localhost:5432/app?ttl=10s")
//
// # With PostgreSQL, fence
//
// The lock of a session ends with the session, at the moment at which the server decides
// so: an operator ends it, a machine on the way resets the connection, the server
// restarts, or a standby is promoted, which knows of no locks. Somebody else may then have
// the lock a moment before its holder has heard of it. So [lock.Leased] is not promised.
// What is promised is [lock.Fencing]: let the resource check the token. If the resource is
// a table of the same database, a lock bound to the transaction that writes it is better
// still: see [TryAcquireTx].
//
// What ends a session is heard within milliseconds where the network tells. Where it does not
// (a cable is pulled) the session is a lease like any other: it is proved every third of the
// TTL, the holder is told before the TTL is over, and the server lets go when it is over
// (idle_session_timeout, from version 14; before, TCP's own limits do it for a machine
// that has vanished, but not for a process that is stopped).
//
// # Connections
//
// All locks of a Locker that were free when it asked for them are on one connection. A
// lock that was taken is waited for on another, one for each lock that is waited for, and
// it stays there until it is released. Of these there are at most wait_conns, and they are
// closed when they have had nothing to do for a TTL; who finds none free asks again and
// again, at growing intervals of up to a quarter of a second. No connection is another's
// before or after: a pool's size, the age and idleness that it allows its connections, and
// the settings of roles (statement_timeout, lock_timeout and their like) do not touch
// locks, nor do locks leave anything behind.
//
// A server has room for a number of locks, which its max_locks_per_transaction and
// max_connections make: more than ten thousand by default. And each lock that a session
// holds makes each of its requests slower by a little, which is felt where it holds
// thousands: such programs share them out among several Lockers.
//
// A pooler such as PgBouncer must be in session mode. One that gives each transaction
// another backend is found out when a session is opened; if it should be missed, each
// statement looks at the backend that it has reached, and does nothing at another's.
//
// # Waiting
//
// Waiters stand in the server's queue, in order; the next one has the lock as soon as it
// is released. They leave it every half second and queue again: a statement that waits is
// a snapshot that stays open, and would keep a holder's CREATE INDEX CONCURRENTLY waiting
// for its own waiters. So [lock.FIFO] is not promised. Readers do not keep writers out,
// nor writers readers. A role that may not make temporary functions has the end of each
// such half second in the server's log, as an error.
//
// # Tokens
//
// A token is a number of a sequence, in an epoch. A crash, after which a sequence may give
// numbers again, begins a new epoch, and so do a restart, a promotion and a restored
// backup. An epoch is durable before its first token, and not below the clock in seconds;
// so a promoted standby, or an old backup, gives greater tokens than were given before,
// provided that a second has passed and the clock was not stepped back by more than the
// time since. Restore a backup while no Locker is open: a session reads the epoch once,
// and would go on in it with the numbers of a sequence that was set back. Nothing is
// written to the disk for a single lock.
//
// What tokens need in the database (two tables of one row, a sequence) is created in a
// schema of its own with the first session, or by an administrator: see [Schema]. With
// token=off there are no tokens, and nothing is needed.
//
// # Keys
//
// PostgreSQL knows a lock by a number of 64 bits: the first of the SHA-256 of namespace
// and key. Locks of different databases have nothing to do with each other. The numbers of
// two keys are the same once in 2^64; within one Locker this is an error that names the
// other key, and between two of them the keys exclude each other, until one is released.
//
//	SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
//
// shows the locks, and application_name in pg_stat_activity whose they are. There is no
// way to take a single lock away, but to end its session.
//
// # URLs
//
//	postgres://user:password@host:port/database?namespace=text&schema=text&token=off&wait_conns=8
//
// All but the scheme may be left out. What is not given comes from where psql takes it,
// too (PGHOST, PGPASSWORD, a password file). Special characters in user and password are
// percent-encoded. The query takes the keys that all backends share (see [lock.Open]);
// those of libpq that concern the connection: host, port, connect_timeout,
// target_session_attrs, passfile, service, servicefile, sslmode, sslrootcert, sslcert,
// sslkey, sslsni and sslnegotiation; and those of pools, as pool_max_conns, which mean
// nothing to locks. Of several hosts, name only those that replicate one another, with
// target_session_attrs=read-write. Opening opens the session: what the server refuses
// fails at once, and a server that cannot be reached is an error that matches
// [lock.ErrUnavailable].
package pglock
