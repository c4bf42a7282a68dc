package lock

import (
	"context"
	"time"
)

// Locker grants locks on keys. It is safe for concurrent use; goroutines that
// share one Locker exclude each other as strangers do.
//
// A key is any non-empty string of at most [MaxKeyLen] bytes. Distinct keys never
// touch each other, whatever their text.
//
// The limits of Acquire, TryAcquire and Release are late by up to 10 seconds if ctx cannot
// end and a connection is so full that not even the request can be sent. A ctx that
// can end, or be cancelled, is kept to.
type Locker interface {
	// Acquire waits until it holds key, ctx is done, or the time given by [Wait]
	// is over. Both bound the wait, never the hold. If Acquire returns an error,
	// nothing is held.
	//
	// The error of a wait that ended matches ctx's error (and its cause) if ctx
	// ended it. It matches [ErrHeld] if the key was last seen taken, and
	// [ErrUnavailable] if the server could not be asked. Faults that may pass are
	// retried until the wait ends; those that will not (authentication, TLS,
	// permission) are returned at once.
	Acquire(ctx context.Context, key string, opts ...Option) (Handle, error)

	// TryAcquire makes one attempt. Its error matches [ErrHeld] if anyone, this
	// Locker included, holds key, and [ErrUnavailable] if that is not known.
	// Without a deadline in ctx it ends within 10 seconds.
	TryAcquire(ctx context.Context, key string, opts ...Option) (Handle, error)

	// Inspect says who holds key now, without taking it. The answer may be out of
	// date when it arrives: it is for operators, not for decisions.
	Inspect(ctx context.Context, key string) (Info, error)

	// Features says what this Locker's backend can promise.
	Features() Features

	// Close ends the Locker and returns within 2 seconds in any state of the
	// network. Handles not yet released are lost, with [ErrClosed] as cause, and
	// released. Further calls return [ErrClosed]; a second Close returns nil.
	Close() error
}

// Handle is one grant of a lock. It is held from the moment it is returned, and
// then either lost or released, once and for good. All methods are safe for
// concurrent use.
type Handle interface {
	// Key returns the key that was acquired.
	Key() string

	// Token returns the fencing token of this grant, and false if the backend has
	// none.
	Token() (Token, bool)

	// Lost returns a channel that is closed when the lock can no longer be proved
	// held. Release never closes it, so that every close is an incident.
	Lost() <-chan struct{}

	// Err returns nil while the lock is held, judged at this instant. Afterwards
	// it matches [ErrLost] (and the cause of the loss) or [ErrReleased].
	Err() error

	// Valid returns how long from now the hold stays proved if no renewal
	// succeeds any more, and 0 once it is over. Time in which the machine is
	// suspended counts.
	Valid() time.Duration

	// Release gives the lock up. It returns nil if the lock was released, by this
	// call or an earlier one, and an error that matches [ErrLost] if it was gone
	// already. Any other error means that the outcome is not known yet: the lock
	// goes on being released in the background, and ends with its lease at the
	// latest.
	//
	// ctx bounds how long Release waits for the answer, never whether the lock is
	// released: Release with a cancelled context works, and gives the server a
	// moment to answer. Without a deadline in ctx it waits for 10 seconds.
	Release(ctx context.Context) error
}

// Token is a fencing token: greater than every earlier token of the same key, in
// any mode, over release, expiry, crash and restart of the server. A resource
// that remembers the greatest token it has accepted, and refuses smaller ones,
// is safe from holders that do not know yet that they have lost the lock.
//
// Among those who share a lock, who is granted it later may have the smaller token,
// if they had to wait in a queue: no exclusive holder comes between them. A resource
// that is used by both kinds refuses an exclusive holder whose token is smaller than
// any that it has accepted, but one who shares only if it is smaller than that of an
// exclusive holder.
//
// Tokens of different backends, or of a store and its restored copy, do not
// compare; [Config] has TokenBase for moving from one to the other.
type Token uint64

// Mode says whom a grant excludes.
type Mode uint8

const (
	// ModeExclusive excludes every other holder.
	ModeExclusive Mode = iota
	// ModeShared excludes exclusive holders only.
	ModeShared
)

// String returns "exclusive" or "shared".
func (m Mode) String() string {
	if m == ModeShared {
		return "shared"
	}
	return "exclusive"
}

// Info is what a backend tells of a key. What it does not know stays zero.
type Info struct {
	Key     string
	Holders []Holder // none: the key is free
	Waiters int      // how many queue at the server; those inside other processes do not show
}

// Holder is one holder of a key.
type Holder struct {
	Owner  string    // as in the holder's [Config]
	Token  Token     // with the TokenBase of the Locker that was asked
	Since  time.Time // by the server's clock
	Shared bool
}
