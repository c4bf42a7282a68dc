package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"
)

// request is one identity at the server, and what the engine knows of it.
type request struct {
	Request
	slices int // calls that were answered by ErrAgain since the server last said that nothing is left
}

// attempt is one call of Driver.Acquire under way. The caller can leave it behind;
// then whatever it brings is given back. The fields are guarded by engine.mu.
type attempt struct {
	a       *acquisition
	req     *request
	results chan result // nil: the caller makes the call itself
	left    bool
	gone    error       // the server said that the grant is gone before it was returned
	abandon *settlement // when left: waits for the driver to return
}

type result struct {
	grant Grant
	err   error
}

func (a *acquisition) newRequest() *request {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return &request{Request: Request{
		Key: a.key, ID: hex.EncodeToString(id[:]), Owner: a.e.cfg.Owner, TTL: a.e.cfg.TTL,
		Mode: a.set.Mode, Wait: !a.noWait(), Busy: a.busy,
	}}
}

// call makes one call of Driver.Acquire where the caller can leave it: an SDK may
// not notice that its context has ended. If the wait ends first, the error is errOver,
// and what was done or may still be done is being settled.
func (a *acquisition) call(ctx context.Context, req *request) (Grant, error) {
	e := a.e
	at := &attempt{a: a, req: req}
	if !e.begin(ctx, at) {
		return nil, errOver
	}
	if e.inline(a.ctx) {
		return a.callHere(ctx, at)
	}
	at.results = make(chan result, 1)
	go func() {
		grant, err := e.d.Acquire(ctx, &req.Request)
		e.mu.Lock()
		defer e.unlock()
		if at.left {
			e.landLate(at, result{grant, err})
			return
		}
		at.results <- result{grant, err}
	}()
	select {
	case res := <-at.results:
		return a.take(ctx, at, res)
	case <-ctx.Done():
	}
	e.mu.Lock()
	select {
	case res := <-at.results:
		e.mu.Unlock()
		return a.take(ctx, at, res)
	default:
	}
	defer e.unlock()
	e.leave(at)
	return nil, errOver
}

// callHere makes the call on this goroutine. A panic of the driver's, which the caller may
// survive, leaves it behind.
func (a *acquisition) callHere(ctx context.Context, at *attempt) (Grant, error) {
	e, returned := a.e, false
	defer func() {
		if returned {
			return
		}
		e.mu.Lock()
		defer e.unlock()
		e.leave(at)
		e.landLate(at, result{nil, errPanic})
	}()
	grant, err := e.d.Acquire(ctx, &at.req.Request)
	returned = true
	return a.take(ctx, at, result{grant, err})
}

// begin notes that at is under way. false: the wait is over already, and what earlier
// slices of it may have left is being settled.
func (e *engine) begin(ctx context.Context, at *attempt) bool {
	e.mu.Lock()
	defer e.unlock()
	if ctx.Err() != nil || e.isClosed {
		if at.req.slices > 0 {
			e.settleNow(at.a.abandonment(at.req), Now())
		}
		return false
	}
	e.pending[at.req.ID] = at
	return true
}

// leave leaves at behind. The driver usually returns now that its context has ended.
// One that does not is not waited for: what it is doing is abandoned while it does it.
func (e *engine) leave(at *attempt) {
	at.left = true
	at.abandon = at.a.abandonment(at.req)
	after := e.tryLimit()
	if e.isClosed {
		after = 0
	}
	e.settleLater(at.abandon, Now(), after)
}

// take accepts the answer of an attempt. An unknown outcome after the end of ctx is
// the end of the wait, and settled in the background.
func (a *acquisition) take(ctx context.Context, at *attempt, res result) (Grant, error) {
	if res.err == nil {
		return res.grant, nil // pending until it is adopted
	}
	over := !LeavesNothing(res.err) && ended(ctx)
	e := a.e
	e.mu.Lock()
	defer e.unlock()
	if over {
		e.settleNow(a.abandonment(at.req), Now())
	}
	e.unpend(at)
	if over {
		return nil, errOver
	}
	return nil, res.err
}

// landLate takes what an attempt brings whose caller has gone.
func (e *engine) landLate(at *attempt, res result) {
	now := Now()
	switch {
	case res.err == nil:
		e.settle(at.a.returning(res.grant), now)
		e.drop(at.abandon, now)
	case LeavesNothing(res.err) && at.req.slices == 0:
		e.drop(at.abandon, now)
	default:
		e.enqueueTry(at.abandon, now)
	}
	e.unpend(at)
}

func (e *engine) unpend(at *attempt) {
	delete(e.pending, at.req.ID)
	e.checkIdle()
}

// abandon has it made sure, in the background, that nothing is left of a request.
func (a *acquisition) abandon(req *request) {
	e := a.e
	a.owed = a.abandonment(req)
	e.mu.Lock()
	defer e.unlock()
	e.settleNow(a.owed, Now())
}

// settled waits until nothing is left of the last request: the next one would find the
// key taken by it. false: the wait ended first. After two TTLs the settlement is given up;
// then the next request cannot find more than a key that is taken.
func (a *acquisition) settled(ctx context.Context) bool {
	if a.owed == nil {
		return true
	}
	select {
	case <-a.owed.done:
		a.owed = nil
		return true
	case <-ctx.Done():
	case <-a.e.closing.Done():
	}
	return false
}

// abandonment settles what there may be of a request at the server. If that cannot be
// done, any of the shared leases there are may carry it, and would keep it alive.
func (a *acquisition) abandonment(req *request) *settlement {
	e := a.e
	return a.owing(&settlement{
		attempt: func(ctx context.Context) error { return e.d.Abandon(ctx, &req.Request) },
		gaveUp: func(now Stamp, _ error) {
			for _, l := range e.leases {
				e.giveUpLease(l, now, errGhost)
			}
		},
	})
}

// returning gives a grant back that nobody will hold.
func (a *acquisition) returning(g Grant) *settlement {
	e := a.e
	return a.owing(&settlement{
		attempt: g.Release,
		gaveUp: func(now Stamp, _ error) {
			if l := e.leases[g.Lease()]; l != nil {
				e.giveUpLease(l, now, errGhost)
			}
		},
	})
}

// owing keeps the gate shut until s is over: a server that knows only sessions would
// let the next one of this process in beside what is still there.
func (a *acquisition) owing(s *settlement) *settlement {
	e := a.e
	e.gates.use(a.pass)
	gaveUp := s.gaveUp
	s.settled = func(Stamp, error) { e.gates.leave(a.pass) }
	s.gaveUp = func(now Stamp, err error) {
		gaveUp(now, err)
		e.gates.leave(a.pass)
	}
	return s
}
