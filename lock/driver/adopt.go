package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/lock"
)

var errStale = errors.New("the grant took longer than half of its lease to arrive, and could not be renewed")

// adopt makes a handle of a grant. If that cannot be done the grant is given back,
// and the error says why, as one of Driver.Acquire would.
func (a *acquisition) adopt(ctx context.Context, req *Request, g Grant) (*handle, error) {
	e := a.e
	e.mu.Lock()
	defer e.unlock()
	at := e.pending[req.ID]
	defer e.unpend(at)
	l := e.leases[g.Lease()]
	if l == nil {
		l = e.record(g.Lease(), false)
	}
	err := a.fit(ctx, at, l, g)
	if err == nil {
		return a.handle(req, l, g), nil
	}
	if !l.shared && l.handles == nil && !l.ended {
		l.ended = true
		delete(e.leases, l.Lease)
	}
	e.settle(&settlement{attempt: g.Release, gaveUp: e.endAll}, Now())
	return nil, err
}

// fit checks that a grant can still be relied on when it is returned, and renews it
// first if half of its term is over: it may have been granted long ago, or its
// answer may have been long on the way. It unlocks the engine for that.
func (a *acquisition) fit(ctx context.Context, at *attempt, l *lease, g Grant) error {
	e := a.e
	for renewed := false; ; renewed = true {
		now := Now()
		switch {
		case e.isClosed:
			return Refused(lock.ErrClosed)
		case at.gone != nil:
			return Refused(at.gone)
		case l.ended:
			return Refused(errors.New("the lease ended while the grant was on the way"))
		case a.set.Margin >= l.Term()/2:
			return fmt.Errorf("%w: margin %v is not below half of the lease of %v that the server granted",
				lock.ErrInvalid, a.set.Margin, l.Term())
		}
		if proved := min(g.Proved(), now); l.deadline == never || now < l.deadline {
			l.prove(proved)
		}
		if l.deadline.Sub(now) >= l.term/2 {
			return nil
		}
		if renewed {
			return Refused(errStale)
		}
		if err := a.renewFirst(ctx, l); err != nil {
			return Refused(err)
		}
	}
}

// renewFirst renews a lease for a grant that is about to be returned.
func (a *acquisition) renewFirst(ctx context.Context, l *lease) error {
	e := a.e
	limit := attemptLimit(l.term)
	e.mu.Unlock()
	sent := Now()
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLimit)
	defer cancel()
	answers := make(chan error, 1)
	go func() {
		errs := e.d.Renew(ctx, []Lease{l.Lease})
		if len(errs) != 1 {
			errs = wrongCount(1, len(errs))
		}
		answers <- errs[0]
	}()
	var err error
	select {
	case err = <-answers:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	e.mu.Lock()
	now := Now()
	switch {
	case l.ended:
		return nil // fit says so
	case errors.Is(err, lock.ErrLost):
		e.loseLease(l, now, true, err)
		return err
	case err != nil:
		return err
	case l.shared && now >= l.deadline:
		e.endLease(l, now, errDeadline)
		return nil
	}
	// Nobody has relied yet on a lease of its own: it may be counted from here even
	// if its first deadline is over.
	l.prove(sent)
	return nil
}

func (a *acquisition) handle(req *Request, l *lease, g Grant) *handle {
	e, now := a.e, Now()
	h := &handle{e: e, key: a.key, id: req.ID, grant: g, margin: a.set.Margin, pass: a.pass}
	if h.token, h.hasToken = g.Token(); h.hasToken {
		h.token += e.cfg.TokenBase
	}
	h.link(l)
	e.held[h.id] = h
	e.gates.setTaken(h.pass, true)
	if a.set.MaxHold > 0 {
		h.limit = &limit{h: h, maxHold: true}
		e.set(h.limit, now.Add(a.set.MaxHold))
	}
	l.plan(e, now)
	return h
}
