package driver

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// lease is the engine's record of a Lease: until when it is proved, when it is to
// be renewed, and whose grants are on it. The fields are guarded by engine.mu.
//
// The record of a lease that has ended stays for a while, so that a grant on it
// which was still on the way is not taken for a new one.
type lease struct {
	alarm
	Lease
	shared   bool // announced by Keep: renewed without grants, and given up with End
	ended    bool
	resting  bool          // no renewal any more: it is given up, or its only grant is released or lost
	queued   bool          // in engine.due
	warned   bool          // Jeopardy was told since the last proof
	tries    int           // renewals that failed since the last proof
	failure  error         // of the last of them
	hung     int           // renewals in a row that the driver did not return from
	term     time.Duration // when it was last proved
	pace     time.Duration // of its renewals: the term, or the TTL if that is shorter, in which a loss is to be noticed
	proved   Stamp
	deadline Stamp
	renewAt  Stamp
	flight   *flight       // the renewal under way
	first    *renewal      // that acquisitions wait for
	handles  *handle       // head of the list of grants that are not surely gone
	margin   time.Duration // the greatest of the held handles, or more
}

var (
	errDeadline = errors.New("no renewal came through before the lease ran out")
	errMargin   = errors.New("no renewal came through before the margin began")
)

// never is before every moment.
const never Stamp = math.MinInt64

// why adds to the cause of a loss what the last renewal has failed with.
func (l *lease) why(cause error) error {
	if l.failure == nil {
		return cause
	}
	return fmt.Errorf("%w (%v)", cause, l.failure) //nolint:errorlint // a text: the loss is the cause
}

// record makes the record of l.
func (e *engine) record(l Lease, shared bool) *lease {
	rec := &lease{Lease: l, shared: shared, proved: never, deadline: never}
	e.leases[l] = rec
	return rec
}

// safe is how long after its proof a lease of that term can be relied on: less a
// hundredth, for clocks that run at different rates, and less a fixed margin, for
// timers that fire late.
func safe(term time.Duration) time.Duration {
	return term - term/100 - max(10*time.Millisecond, term/50)
}

// prove counts the lease from the moment before the sending of a request that was
// answered. The deadline only grows; the caller has checked that it has not passed.
func (l *lease) prove(sent Stamp, ttl time.Duration) {
	l.term = max(0, l.Term())
	l.pace = min(l.term, ttl)
	l.deadline = max(l.deadline, sent.Add(safe(l.term)))
	if sent > l.proved {
		l.proved = sent
		l.tries = 0
		l.failure = nil
		l.warned = false
		l.renewAt = sent.Add(renewAfter(l.pace))
	}
}

// renewAfter is a third of the pace or a little less: leases that were taken together
// spread over time, and those due at nearly the same time share a batch.
func renewAfter(pace time.Duration) time.Duration {
	return pace/3 - rand.N(pace/12+1)
}

// retryAfter is when to try again after the n-th failed renewal.
func retryAfter(pace time.Duration, n int) time.Duration {
	d := min(pace/60<<min(n, 3), pace/12)
	return d/2 + rand.N(d/2+1)
}

// attemptLimit is how long one renewal may take.
func attemptLimit(term time.Duration) time.Duration { return min(term/6, 5*time.Second) }

// renewable says whether the lease is to be renewed: a lease of a single grant only
// while that grant is held, a shared one until it is given up.
func (l *lease) renewable() bool { return !l.ended && !l.resting }

// jeopardy is the moment halfway between the renewal and the loss. Without a
// Margin, a third of the term is left then.
func (l *lease) jeopardy() Stamp {
	renew := l.proved.Add(l.term / 3)
	return renew.Add(l.deadline.Add(-l.margin).Sub(renew) / 2)
}

// plan sets the lease's next alarm.
func (l *lease) plan(e *engine, now Stamp) {
	if l.ended {
		return
	}
	at := l.deadline
	if l.margin > 0 {
		at = min(at, l.deadline.Add(-l.margin))
	}
	if l.renewable() {
		if l.flight == nil && !l.queued {
			at = min(at, l.renewAt)
		}
		if !l.warned && l.handles != nil {
			at = min(at, l.jeopardy())
		}
	}
	e.set(l, max(at, now))
}

// ring does what is due: the end of the lease, the end of a handle's margin, the
// warning, the renewal.
func (l *lease) ring(e *engine, now Stamp) {
	if l.ended { // it was kept long enough for what was on the way
		delete(e.leases, l.Lease)
		return
	}
	if now >= l.deadline {
		e.endLease(l, now, l.why(errDeadline))
		return
	}
	l.loseMargins(e, now)
	if l.ended {
		return
	}
	if l.renewable() {
		if !l.warned && l.handles != nil && now >= l.jeopardy() {
			l.warned = true
			e.post(background, l.event(lock.Jeopardy, now))
		}
		if l.flight == nil && !l.queued && now >= l.renewAt {
			e.enqueueRenewal(l)
		}
	}
	l.plan(e, now)
}

// dueForRenewal says whether the lease's alarm is for its renewal.
func (l *lease) dueForRenewal() bool {
	return l.renewable() && !l.queued && l.flight == nil && l.at == l.renewAt
}

// extend takes an answer that proves the lease as of sent, unless it comes too late:
// nothing revives a lease whose deadline has passed, nor a handle whose margin has
// begun. A late answer may even be wrong: a server may have said yes while it was
// already letting go. Only a lease of its own that nobody has relied on yet may be
// counted from here, although its first deadline is over.
func (e *engine) extend(l *lease, sent, now Stamp) {
	if l.ended {
		return
	}
	relied := l.shared || l.handles != nil
	if relied && l.deadline != never && now >= l.deadline {
		e.endLease(l, now, l.why(errDeadline))
		return
	}
	l.loseMargins(e, now)
	l.prove(min(sent, now), e.cfg.TTL)
}

// loseMargins loses the handles whose Margin has begun.
func (l *lease) loseMargins(e *engine, now Stamp) {
	if l.margin == 0 || now < l.deadline.Add(-l.margin) {
		return
	}
	l.margin = 0
	for h := l.handles; h != nil; {
		next := h.next
		if h.state == held {
			if now >= h.deadline() {
				h.lose(e, now, l.why(errMargin))
			} else {
				l.margin = max(l.margin, h.margin)
			}
		}
		h = next
	}
}

// endLease loses everything on a lease that this side gives up.
func (e *engine) endLease(l *lease, now Stamp, cause error) {
	e.loseLease(l, now, false, cause)
}

// giveUpLease loses everything on a lease that the server may keep, as there may be
// something on it that must not be kept. Holders that wind down are still alone: it is
// ended when they have released, or at its deadline.
func (e *engine) giveUpLease(l *lease, now Stamp, cause error) {
	if l.ended || !l.shared {
		return
	}
	l.resting = true
	for h := l.handles; h != nil; h = h.next {
		h.lose(e, now, cause)
	}
	if l.handles == nil {
		e.endLease(l, now, cause)
		return
	}
	l.plan(e, now)
}

// loseLease loses everything on a lease that is over; gone says that the server
// said so. A shared lease is ended at the server, with all that is left on it, so
// that the driver opens another when next asked. A lease of a single grant lapses by
// itself, and what its holder does not release is left alone until then.
//
// The deadline is a little before the moment at which the server may let go, and until
// then those who have just lost are still alone: if they were on it, a shared lease is not
// ended earlier, although the server may be within reach, and would let others in at once.
func (e *engine) loseLease(l *lease, now Stamp, gone bool, cause error) {
	if l.ended {
		return
	}
	l.ended = true
	l.queued = false
	delivered := l.handles != nil
	for h := l.handles; h != nil; {
		next := h.next
		h.lose(e, now, cause)
		h.gone = h.state == lost && (l.shared || gone)
		h.forget(e)
		h = next
	}
	ending := now
	switch {
	case l.shared:
		s := &settlement{attempt: l.End}
		if alone := l.proved.Add(l.term); delivered && !gone && alone > now {
			ending = alone
			e.settleLater(s, now, alone.Sub(now))
		} else {
			e.settleNow(s, now)
		}
	case delivered: // its one grant is not on the way any more
		e.alarms.unset(l)
		delete(e.leases, l.Lease)
		return
	}
	e.set(l, ending.Add(2*e.cfg.TTL))
}

// event is one about the lease as a whole; it has a key if only one key is on it.
func (l *lease) event(kind lock.EventKind, now Stamp) lock.Event {
	ev := lock.Event{Kind: kind, Left: max(0, l.deadline.Add(-l.margin).Sub(now))}
	if !l.shared && l.handles != nil {
		ev.Key, ev.Token = l.handles.key, l.handles.token
	}
	return ev
}
