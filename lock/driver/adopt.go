package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/lock"
)

var errStale = errors.New("the grant came too late to rely on")

// adopt makes a handle of a grant. If that cannot be done the grant is given back,
// and the error says why, as one of Driver.Acquire would.
func (a *acquisition) adopt(ctx context.Context, req *request, g Grant) (*handle, error) {
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
	e.settle(a.returning(g), Now())
	return nil, err
}

// fit checks that a grant can still be relied on when it is returned, and renews its
// lease first if too little is left of it: the grant may be old, or its answer may have
// been long on the way. It unlocks the engine for that.
func (a *acquisition) fit(ctx context.Context, at *attempt, l *lease, g Grant) error {
	e := a.e
	e.extend(l, g.Proved(), Now())
	for renewed := false; ; renewed = true {
		switch {
		case e.isClosed:
			return Refused(lock.ErrClosed)
		case at.gone != nil:
			return Refused(fmt.Errorf("%w: %v", errStale, at.gone)) //nolint:errorlint // what the server said of it must not match ErrLost
		case l.ended || l.resting && l.shared:
			return Refused(errStale)
		case a.set.Margin >= l.term/2:
			return Permanent(fmt.Errorf("%w: margin %v is not below half of the lease of %v that the server granted",
				lock.ErrInvalid, a.set.Margin, l.term))
		case l.deadline.Sub(Now()) >= max(l.term/2, a.set.Margin+l.term/4):
			return nil
		case renewed:
			return Refused(errStale)
		}
		if err := a.renewFirst(ctx, l); err != nil {
			return Refused(fmt.Errorf("%w: %v", errStale, err)) //nolint:errorlint // as above
		}
	}
}

// renewFirst renews a lease for a grant that is about to be returned. Of several grants
// on one lease, one renews and the others wait for it.
func (a *acquisition) renewFirst(ctx context.Context, l *lease) error {
	e := a.e
	ctx, cancel := context.WithTimeoutCause(ctx, attemptLimit(l.pace), errLimit)
	defer cancel()
	if first := l.first; first != nil {
		e.mu.Unlock()
		defer e.mu.Lock()
		select {
		case <-first:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	l.first = make(chan struct{})
	defer func() {
		close(l.first)
		l.first = nil
	}()

	e.mu.Unlock()
	sent := Now()
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
	switch now := Now(); {
	case err == nil:
		e.extend(l, sent, now)
	case errors.Is(err, lock.ErrLost):
		e.loseLease(l, now, true, err)
	}
	return err
}

func (a *acquisition) handle(req *request, l *lease, g Grant) *handle {
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
