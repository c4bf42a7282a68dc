// Package driver is what a backend implements, and the engine that all backends
// share. Users of locks do not need it: see package lock.
//
// A backend is a [Driver]: a handful of request-and-answer calls to its server,
// with no goroutine, timer or retry of its own unless its server or its SDK forces
// one. [New] makes a [lock.Locker] of it. The engine owns everything that makes a lock
// trustworthy and that every backend would otherwise get wrong in its own way:
// it checks keys, options and configuration; makes goroutines of one process
// exclude each other; waits; renews in batches; closes Lost by the local clock,
// counted from before the sending of the request that last proved the lease;
// settles every outcome that is unknown; and ends in bounded time.
//
// An author whose backend does not fit the engine implements [lock.Locker]
// directly: the conformance suite tests only that.
package driver

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Driver talks to one server. The engine calls its methods from several
// goroutines at once. Each must return soon after its context ends; the engine
// leaves a call that does not behind, and takes what it brings later as late.
type Driver interface {
	// Acquire makes one attempt for r, or, with r.Wait, may queue at the server.
	// Calling it again with the same r must find what an earlier call did: it is
	// idempotent by r.ID. Its error is
	//   - [lock.ErrHeld]: the key is taken, and nothing of r is left behind;
	//   - [ErrAgain]: a slice of a wait is over; call again at once with the same r;
	//   - marked by [Permanent] or [Refused]: surely nothing of r is left behind;
	//   - anything else: unknown, and the engine calls Abandon.
	//
	// ctx ends when the caller gives up, or at the engine's own limit. What a
	// driver shares between callers (a session, say) it shields from ctx.
	Acquire(ctx context.Context, r *Request) (Grant, error)

	// Abandon makes sure that r holds nothing and can never be granted later,
	// even if a request for it is still on its way to the server. It may be
	// called many times, and for an r that the server never saw. Once it has
	// returned nil the engine forgets r.
	Abandon(ctx context.Context, r *Request) error

	// Renew renews a batch and answers for each, in order: nil, the server has
	// extended it; [lock.ErrLost], the server says that it is gone; other,
	// nothing is proved. The engine takes the time of proof before it calls.
	// Renew extends what is there and never creates what is not.
	Renew(ctx context.Context, leases []Lease) []error

	// Inspect says who holds key. The engine fills in Info.Key, and adds the
	// TokenBase.
	Inspect(ctx context.Context, key string) (lock.Info, error)

	// Features says what the backend promises.
	Features() lock.Features

	// Close frees what the driver has: connections, sessions. The engine has
	// released its grants by then, as far as the server could be reached.
	Close(ctx context.Context) error
}

// Prompt is what a Driver may implement, too, if no call of Acquire or Release outlasts
// the deadline of its context, whatever the server does. Then a caller that could not
// give up sooner, for its context has no end, makes these calls on its own goroutine: to
// hand them to another takes about as long as a server nearby takes to answer. Where not
// even the request can be sent, for the connection is full of others that nobody reads, or
// has just broken, a call may take up to 10 s longer.
//
// A cancellation before the deadline need not end a question to the server, but it must
// end a wait for the key. Close does not end such a question either: at a mute server the
// caller's own call comes back that much later.
type Prompt interface {
	Driver
	Prompt() bool
}

// Request is one acquisition, as the driver sees it. The engine makes a new one,
// with a new ID, after an unknown outcome.
type Request struct {
	Key   string
	ID    string // 128 random bits in hexadecimal: who this is, at the server
	Owner string // for Inspect
	TTL   time.Duration
	Mode  lock.Mode
	Wait  bool   // the driver may queue; without it, one attempt
	Busy  func() // call it, any number of times and holding no lock, when the server says that the key is taken
}

// Lease is what the server keeps alive. Term is called with the engine locked: it must
// neither block nor call the Host. Grants that live and die together (an
// etcd lease, a ZooKeeper or PostgreSQL session) share one; a Redis lock has its
// own. A Lease is compared by identity: implement it on a pointer.
type Lease interface {
	// Term is how long after Proved the server surely keeps the lease: what it
	// really granted, less the corrections that this backend needs. The engine
	// subtracts the margins for clock rates itself. What is left of a short term may be
	// nothing, or less: then the lease was over when it was proved, and nobody is given a
	// lock on it.
	Term() time.Duration

	// End gives the whole lease up, with every grant and every waiter on it:
	// calls of Acquire that wait on it return, with an error marked by [Refused],
	// for what they left at the server ends with the lease. From the moment End is
	// called the driver grants nothing on it any more. The engine calls it for leases
	// announced by [Host.Keep], until it answers nil or [lock.ErrLost], for two TTLs at most:
	//   - when they passed their deadline; not before the end of their term if anybody held
	//     a lock on them, who is alone until then. What is granted on them in between is given
	//     back: TryAcquire fails with [lock.ErrUnavailable], and waits go on;
	//   - when the server said that they are gone, by [Host.LeaseLost] or an answer to Renew;
	//   - when they may carry what could not be abandoned, and nobody holds a lock on them
	//     any more;
	//   - at Close, at once, with locks held on them; and when they are announced after it.
	End(ctx context.Context) error
}

// Grant is one lock held at the server. Its methods but Release are called with the
// engine locked: they must neither block nor call the Host.
type Grant interface {
	Token() (lock.Token, bool)
	Lease() Lease
	// Proved is the moment before the request was sent that last proved the lease.
	// Joining a shared lease proves nothing new.
	Proved() Stamp
	// Release frees this grant and nothing else: nil, freed; [lock.ErrLost], it
	// was gone already; other, unknown. It may be called again.
	Release(ctx context.Context) error
}

// Host is the engine as a driver sees it. Its methods do not block; call them
// holding no lock.
type Host interface {
	// Keep announces a shared lease, before anybody can be granted anything on it:
	// it is renewed from now on, with or without grants, until it ends.
	Keep(l Lease, proved Stamp)
	// LeaseLost says that the server told that the lease is gone: all its grants
	// are lost.
	LeaseLost(l Lease, cause error)
	// GrantLost says that the server told that the grant of this request ID is
	// gone.
	GrantLost(id string, cause error)
	// Warn tells the operator, by an event, of something about the server that
	// should be mended.
	Warn(err error)
}

// ErrAgain is a Driver's answer that a slice of a wait is over: see
// [Driver.Acquire].
var ErrAgain = errors.New("call again")

// Refused marks err as proof that the attempt had no effect and can have none
// later: the server refused it, or it was never sent. The engine may try again,
// and has nothing to abandon.
func Refused(err error) error { return &marked{err, false} }

// Permanent marks err as [Refused], and as a fault that trying again will not
// mend: bad credentials, a certificate, a permission, foreign data at the key.
func Permanent(err error) error { return &marked{err, true} }

type marked struct {
	err       error
	permanent bool
}

func (m *marked) Error() string { return m.err.Error() }
func (m *marked) Unwrap() error { return m.err }
