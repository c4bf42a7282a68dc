package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Renewals have goroutines, and places for them, of their own: however many
// acquisitions wait, what is held is renewed.
const (
	maxBatch   = 256
	maxFlights = 4
	maxStuck   = 8 // a driver that does not return when its context ends must not cost more
)

// flight is one call of Driver.Renew.
type flight struct {
	alarm
	leases []*lease
	sent   Stamp
	done   chan struct{} // closed when the driver has returned, or is not waited for any more
	late   bool          // it timed out
}

// wait waits until f has returned, or is not waited for any more: a driver that hangs
// must not hold up a release, which a late renewal cannot undo. A nil flight is over.
func (f *flight) wait(ctx context.Context) error {
	if f == nil {
		return nil
	}
	select {
	case <-f.done:
		return nil
	case <-ctx.Done():
		return Refused(fmt.Errorf("a renewal is still under way: %w", ctx.Err()))
	}
}

func (e *engine) enqueueRenewal(l *lease) {
	l.queued = true
	e.due = append(e.due, l)
}

// fillBatch takes into the batch what would be due very soon: one request for many
// leases instead of many requests.
func (e *engine) fillBatch(now Stamp) {
	if len(e.due) == 0 {
		return
	}
	soon := now.Add(e.cfg.TTL / 48)
	for {
		r, at, ok := e.alarms.next()
		l, isLease := r.(*lease)
		if !ok || !isLease || at > soon || !l.dueForRenewal() {
			return
		}
		e.enqueueRenewal(l)
		l.plan(e, now)
	}
}

// startRenewals sends what is due, as far as there are free places.
func (e *engine) startRenewals() {
	for e.flights < maxFlights && e.stuck < maxStuck {
		batch := e.nextBatch()
		if len(batch) == 0 {
			return
		}
		e.startFlight(batch)
	}
}

// nextBatch takes the next batch off what is due. Leases whose last renewal never came
// back are kept apart from the others and put into ever smaller batches: one on which a
// driver hangs must not take its neighbours with it.
func (e *engine) nextBatch() []*lease {
	var batch []*lease
	for len(e.due) > 0 {
		l := e.due[0]
		if len(batch) > 0 && (l.hung != batch[0].hung || len(batch) >= maxBatch>>(4*min(l.hung, 2))) {
			break
		}
		e.due[0] = nil
		e.due = e.due[1:]
		l.queued = false
		if l.renewable() {
			batch = append(batch, l)
		}
	}
	return batch
}

func (e *engine) startFlight(batch []*lease) {
	now := Now()
	f := &flight{leases: batch, sent: now, done: make(chan struct{})}
	limit := attemptLimit(e.cfg.TTL)
	for _, l := range batch {
		l.flight = f
		limit = min(limit, attemptLimit(l.term))
		l.plan(e, now)
	}
	e.flights++
	e.set(f, now.Add(limit+limit/4)) // a driver that returns in time says why itself
	go e.fly(f, limit)
}

// fly makes the call.
func (e *engine) fly(f *flight, limit time.Duration) {
	ctx, cancel := context.WithTimeout(e.life, limit)
	defer cancel()
	leases := make([]Lease, len(f.leases))
	for i, l := range f.leases {
		leases[i] = l.Lease
	}
	errs := e.d.Renew(ctx, leases)
	if len(errs) != len(leases) {
		errs = wrongCount(len(leases), len(errs))
	}
	e.mu.Lock()
	defer e.unlock()
	e.land(f, errs)
}

func wrongCount(asked, got int) []error {
	errs := make([]error, asked)
	for i := range errs {
		errs[i] = fmt.Errorf("the driver answered for %d of %d leases", got, asked)
	}
	return errs
}

// ring gives the flight up: its leases are tried again, and what it brings later is
// judged as any other answer, by the moment at which it was sent.
func (f *flight) ring(e *engine, now Stamp) {
	f.late = true
	close(f.done)
	e.flights--
	e.stuck++
	for _, l := range f.leases {
		if l.flight == f {
			l.hung++
		}
		e.renewalFailed(f, l, now, errLimit)
	}
}

// land takes the driver's answers.
func (e *engine) land(f *flight, errs []error) {
	now := Now()
	e.alarms.unset(f)
	if f.late {
		e.stuck--
	} else {
		e.flights--
		close(f.done)
	}
	for i, l := range f.leases {
		l.hung = 0
		switch err := errs[i]; {
		case err == nil:
			e.renewed(f, l, now)
		case errors.Is(err, lock.ErrLost):
			e.gone(f, l, now, err)
		default:
			e.renewalFailed(f, l, now, err)
		}
	}
	e.startRenewals()
}

func (e *engine) renewed(f *flight, l *lease, now Stamp) {
	if l.flight == f {
		l.flight = nil
	}
	if e.extend(l, f.sent, now); l.renewable() {
		ev := l.event(lock.Renewed, now)
		ev.Took = now.Sub(f.sent)
		e.post(background, ev)
	}
	l.plan(e, now)
}

// gone takes the server's word that the lease is no more.
func (e *engine) gone(f *flight, l *lease, now Stamp, err error) {
	if l.flight == f {
		l.flight = nil
	}
	if l.resting && !l.ended && l.handles != nil && l.handles.state == released {
		return // the release has been there first
	}
	e.loseLease(l, now, true, because("the server does not have the lease any more", err))
}

// renewalFailed has the lease tried again. Nothing is known about it: it neither
// lives longer nor is it lost.
func (e *engine) renewalFailed(f *flight, l *lease, now Stamp, err error) {
	if l.flight != f {
		return
	}
	l.flight = nil
	if l.ended {
		return
	}
	l.tries++
	l.failure = err
	l.renewAt = now.Add(retryAfter(l.pace, l.tries))
	if l.renewable() {
		ev := l.event(lock.RenewFailed, now)
		ev.Took, ev.Err = now.Sub(f.sent), err
		e.post(background, ev)
	}
	l.plan(e, now)
}
