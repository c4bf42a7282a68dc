package driver

import (
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// state of a handle: it leaves held once, and for good.
type state uint8

const (
	held state = iota
	lost
	released
)

// handle is a grant, as its holder sees it. Its fields are guarded by engine.mu;
// those above the line never change.
type handle struct {
	e        *engine
	key      string
	id       string
	grant    Grant
	lease    *lease
	token    lock.Token
	hasToken bool
	margin   time.Duration
	// ---
	state      state
	gone       bool // lost, and the server said so: there is nothing left to release
	pass       *pass
	next, prev *handle // in lease.handles
	limit      *limit  // of MaxHold, or of the time after a loss
	lostCh     chan struct{}
	cause      error
	release    *settlement
}

// limit ends a hold that has lasted too long, and frees at the server what its
// holder has lost and not released.
type limit struct {
	alarm
	h       *handle
	maxHold bool
}

var closedCh = func() chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

func (h *handle) Key() string { return h.key }

func (h *handle) Token() (lock.Token, bool) { return h.token, h.hasToken }

func (h *handle) Lost() <-chan struct{} {
	h.e.mu.Lock()
	defer h.e.unlock()
	h.judge(Now())
	if h.lostCh == nil {
		if h.state == lost {
			return closedCh
		}
		h.lostCh = make(chan struct{})
	}
	return h.lostCh
}

func (h *handle) Err() error {
	h.e.mu.Lock()
	defer h.e.unlock()
	h.judge(Now())
	return h.err()
}

func (h *handle) Valid() time.Duration {
	h.e.mu.Lock()
	defer h.e.unlock()
	now := Now()
	h.judge(now)
	return h.valid(now)
}

// deadline is the moment at which h is lost if nothing is renewed any more.
func (h *handle) deadline() Stamp { return h.lease.deadline.Add(-h.margin) }

// judge loses h if its time is over. The clock decides and not the keeper, which
// may be late: what Err and Valid say must be true at the instant.
func (h *handle) judge(now Stamp) {
	if h.state != held {
		return
	}
	switch {
	case now >= h.lease.deadline:
		h.e.endLease(h.lease, now, h.lease.why(errDeadline))
	case now >= h.deadline():
		h.lose(h.e, now, h.lease.why(errMargin))
	case h.limit != nil && h.limit.maxHold && now >= h.limit.at:
		h.lose(h.e, now, lock.ErrMaxHold)
	}
}

func (h *handle) valid(now Stamp) time.Duration {
	if h.state != held {
		return 0
	}
	until := h.deadline()
	if h.limit != nil && h.limit.maxHold {
		until = min(until, h.limit.at)
	}
	return max(0, until.Sub(now))
}

func (h *handle) err() error {
	switch h.state {
	case held:
		return nil
	case lost:
		return fmt.Errorf("holdfast: lock %q: %w: %w", brief(h.key), lock.ErrLost, h.cause)
	default:
		return fmt.Errorf("holdfast: lock %q: %w", brief(h.key), lock.ErrReleased)
	}
}

// lose closes Lost. Nothing is freed at the server: the holder may still be winding
// down. What it does not release is freed by the end of a lease of its own, or,
// on a lease that lives on, after a TTL.
func (h *handle) lose(e *engine, now Stamp, cause error) {
	if h.state != held {
		return
	}
	h.state, h.cause = lost, cause
	if h.lostCh != nil {
		close(h.lostCh)
	}
	e.post(background, lock.Event{Kind: lock.LostLock, Key: h.key, Token: h.token, Err: h.err()})
	if h.limit != nil {
		e.alarms.unset(h.limit)
		h.limit = nil
	}
	if !h.lease.shared {
		h.lease.resting = true
		return
	}
	h.limit = &limit{h: h}
	e.set(h.limit, now.Add(e.cfg.TTL))
}

// forget takes h off the engine's books, when the server surely has nothing of it
// any more or its lease is over, and lets the next of this process in.
func (h *handle) forget(e *engine) {
	if e.held[h.id] != h {
		return
	}
	delete(e.held, h.id)
	if h.limit != nil {
		e.alarms.unset(h.limit)
		h.limit = nil
	}
	h.unlink()
	switch l := h.lease; {
	case l.ended || l.handles != nil:
	case !l.shared: // nothing is left to renew
		l.ended = true
		e.alarms.unset(l)
		delete(e.leases, l.Lease)
	case l.resting:
		e.endLease(l, Now(), errGhost)
	}
	e.gates.leave(h.pass)
}

// link puts h on the list of its lease.
func (h *handle) link(l *lease) {
	h.lease = l
	h.next = l.handles
	if h.next != nil {
		h.next.prev = h
	}
	l.handles = h
	l.margin = max(l.margin, h.margin)
}

func (h *handle) unlink() {
	if h.prev != nil {
		h.prev.next = h.next
	} else {
		h.lease.handles = h.next
	}
	if h.next != nil {
		h.next.prev = h.prev
	}
	h.next, h.prev = nil, nil
}

// ring implements ringer.
func (t *limit) ring(e *engine, now Stamp) {
	if t.maxHold {
		t.h.lose(e, now, lock.ErrMaxHold)
		return
	}
	t.h.startRelease(background, now, e.settle)
}
