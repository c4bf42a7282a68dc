package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	now, err := a.fit(ctx, at, l, g)
	if err == nil {
		return a.handle(req, l, g, now), nil
	}
	if !l.shared && l.handles == nil && !l.ended {
		l.ended = true
		delete(e.leases, l.Lease)
	}
	a.owed = a.returning(g)
	e.settleNow(a.owed, now)
	return nil, err
}

// fit checks that a grant can still be relied on when it is returned, and renews its
// lease first if too little is left of it: the grant may be old, or its answer may have
// been long on the way. It unlocks the engine for that, and returns the moment at which it
// has looked last.
func (a *acquisition) fit(ctx context.Context, at *attempt, l *lease, g Grant) (Stamp, error) {
	e, now := a.e, Now()
	e.extend(l, g.Proved(), now)
	for renewed := false; ; renewed = true {
		switch {
		case e.isClosed:
			return now, Refused(lock.ErrClosed)
		case at.gone != nil:
			return now, Refused(fmt.Errorf("%w: %v", errStale, at.gone)) //nolint:errorlint // what the server said of it must not match ErrLost
		case l.ended || l.resting && l.shared:
			return now, Refused(errStale)
		case a.set.Margin > 0 && a.set.Margin >= l.term/2:
			return now, Permanent(fmt.Errorf("%w: margin %v is not below half of the lease of %v that the server granted",
				lock.ErrInvalid, a.set.Margin, l.term))
		case l.deadline.Sub(now) >= max(l.term/2, a.set.Margin+l.term/4):
			return now, nil
		case renewed:
			return now, Refused(errStale)
		}
		err := a.renewFirst(ctx, l)
		now = Now()
		if err != nil {
			return now, Refused(fmt.Errorf("%w: %v", errStale, err)) //nolint:errorlint // as above
		}
	}
}

// renewal is a call of Driver.Renew for the sake of grants that are about to be returned.
type renewal struct {
	over chan struct{}
	err  error // once over
}

// renewFirst has a lease renewed for a grant that is about to be returned, once for all
// who wait for it then: whoever gives up ends its own wait alone.
func (a *acquisition) renewFirst(ctx context.Context, l *lease) error {
	e := a.e
	if l.first == nil {
		l.first = &renewal{over: make(chan struct{})}
		go e.renewApart(l, l.first, attemptLimit(l.pace))
	}
	first := l.first
	e.mu.Unlock()
	defer e.mu.Lock()
	select {
	case <-first.over:
		return first.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// renewApart makes the call, and leaves one that does not return in time behind.
func (e *engine) renewApart(l *lease, r *renewal, limit time.Duration) {
	ctx, cancel := context.WithTimeoutCause(e.life, limit, errLimit)
	defer cancel()
	sent := Now()
	answers := make(chan error, 1)
	go func() {
		errs := e.d.Renew(ctx, []Lease{l.Lease})
		if len(errs) != 1 {
			errs = wrongCount(1, len(errs))
		}
		answers <- errs[0]
	}()
	select {
	case r.err = <-answers:
	case <-ctx.Done():
		r.err = context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.unlock()
	switch now := Now(); {
	case r.err == nil:
		e.extend(l, sent, now)
	case errors.Is(r.err, lock.ErrLost):
		e.loseLease(l, now, true, r.err)
	}
	l.first = nil
	close(r.over)
}

func (a *acquisition) handle(req *request, l *lease, g Grant, now Stamp) *handle {
	e := a.e
	h := &handle{e: e, key: a.key, id: req.ID, grant: g, margin: a.set.Margin, pass: a.pass}
	if h.token, h.hasToken = g.Token(); h.hasToken {
		h.token += e.cfg.TokenBase
	}
	h.link(l)
	e.held[h.id] = h
	e.news.behind = append(e.news.behind, e.gates.take(h.pass)...)
	if a.set.MaxHold > 0 {
		h.limit = &limit{h: h, maxHold: true}
		e.set(h.limit, now.Add(a.set.MaxHold))
	}
	l.plan(e, now)
	if e.cfg.Observe != nil { // before anything else can be told of h
		now = Now()
		e.post(a.ctx, lock.Event{Kind: lock.Acquired, Key: h.key, Token: h.token, Took: now.Sub(a.began), Left: h.valid(now)})
	}
	return h
}
