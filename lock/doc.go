// Package lock is the contract of Holdfast: one small interface for locks that
// several processes share, whatever server keeps them.
//
// # For, and not for
//
// Use it where the same thing must not be done twice at once by processes that
// share nothing but a server: a nightly job that every replica is scheduled to
// start, an order that two workers may both receive, a controller of which one
// instance acts. Use it too where an operator must be able to ask who holds what.
//
// Do not use it between goroutines of one process (sync.Mutex is a thousand
// times faster), for locks that last microseconds, or as the only guard of data
// that must never be written by two: read the failure model below.
//
// # The first ten lines
//
//	locker, err := lock.Open(ctx, "redis://localhost:6379/0")   // with import _ ".../redislock"
//	if err != nil {
//		return err
//	}
//	defer locker.Close()
//	err = lock.Do(ctx, locker, "nightly-report", func(ctx context.Context, h lock.Handle) error {
//		token, _ := h.Token()
//		return report(ctx, token) // ctx is cancelled if the lock is lost
//	})
//
// [Do] acquires, runs, releases, and tells a loss apart from a failure. Those who
// need the pieces take a [Handle] from [Locker.Acquire] or [Locker.TryAcquire],
// watch [Handle.Lost], and call [Handle.Release].
//
// # Failure model
//
// A lock that a server keeps is a lease: if its holder dies, it must end by
// itself, or nobody could ever free it. So it can also end while its holder
// lives: the network is cut, the server forgets, somebody deletes the record.
//
// What is promised, by a backend with the feature [Leased]: the holder is told
// ([Handle.Lost] closes) before anyone else can be granted the lock, as long as
// the holder's process is running, the server keeps its data, and its clock does
// not jump. The deadline for that is counted from before the request was sent
// that last proved the lock, with margins for clocks that run at different
// speeds, and kept by a timer that no hanging request can delay. A failed renewal
// proves nothing either way and is retried until that deadline.
//
// What no lock can promise: a process that is paused (by the garbage collector,
// the hypervisor, SIGSTOP) may wake up after its lease has ended and write once
// more before it notices. Only the resource itself can refuse that write. For
// this every grant carries a fencing token, a number greater than that of every
// earlier grant of the same key. Send it with each write, and let the resource
// refuse a write whose token is smaller than the greatest that it has accepted:
//
//	UPDATE report SET body = $1, fence = $2 WHERE id = $3 AND fence <= $2
//
// A resource that checks the token is safe whatever happens; a resource that
// does not is as safe as the assumptions above.
//
// # Time
//
// The time to live belongs to the [Locker], not to the call: renewal is
// automatic, so it says how fast a crash is noticed and not how long the work may
// take. Deadlines count the time that a machine spends suspended where the
// operating system tells it (Linux); elsewhere a laptop that was closed notices
// the loss of its locks when its own clock has caught up.
package lock
