package driver

import (
	"context"
	"crypto/rand"
	"encoding/hex"

	"github.com/holdfast-go/holdfast/lock"
)

// attempt is one call of Driver.Acquire under way. The caller can leave it behind;
// then whatever it brings is given back.
type attempt struct {
	req     *Request
	cancel  context.CancelFunc // Close calls it
	results chan result
	left    bool        // the caller went away; guarded by engine.mu, like what follows
	gone    error       // the server said that the grant is gone before it was returned
	abandon *settlement // waits for the driver to return
}

type result struct {
	grant Grant
	err   error
}

func (a *acquisition) newRequest() *Request {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Request{
		Key: a.key, ID: hex.EncodeToString(id[:]), Owner: a.e.cfg.Owner, TTL: a.e.cfg.TTL,
		Mode: a.set.Mode, Wait: !a.noWait(), Busy: a.busy,
	}
}

// call makes one call of Driver.Acquire where the caller can leave it: an SDK may
// not notice that its context has ended. false: ctx ended the call, and what it may
// have done or may still do is being settled.
func (a *acquisition) call(ctx context.Context, req *Request) (result, bool) {
	e := a.e
	if ctx.Err() != nil {
		return result{}, false
	}
	at := &attempt{req: req, cancel: a.cancel, results: make(chan result, 1)}
	e.mu.Lock()
	if e.isClosed {
		e.mu.Unlock()
		return result{err: Permanent(lock.ErrClosed)}, true
	}
	e.pending[req.ID] = at
	e.mu.Unlock()

	go func() {
		grant, err := e.d.Acquire(ctx, req)
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
	// The driver usually returns now that ctx has ended. One that does not is not
	// waited for: what it is doing is abandoned while it does it.
	at.left = true
	at.abandon = e.abandonment(req)
	e.settleLater(at.abandon, Now(), e.tryLimit())
	return result{}, false
}

// take accepts the answer of an attempt. An unknown outcome after the end of ctx is
// the end of the wait, and settled in the background.
func (a *acquisition) take(ctx context.Context, at *attempt, res result) (result, bool) {
	if res.err == nil {
		return res, true // pending until it is adopted
	}
	over := !leavesNothing(res.err) && ended(ctx)
	e := a.e
	e.mu.Lock()
	defer e.unlock()
	if over {
		e.settle(e.abandonment(at.req), Now())
		e.unpend(at)
		return result{}, false
	}
	e.unpend(at)
	return res, true
}

// landLate takes what an attempt brings whose caller has gone.
func (e *engine) landLate(at *attempt, res result) {
	now := Now()
	e.unpend(at)
	switch {
	case res.err == nil:
		e.drop(at.abandon, now)
		e.settle(&settlement{attempt: res.grant.Release, gaveUp: e.endAll}, now)
	case leavesNothing(res.err):
		e.drop(at.abandon, now)
	default:
		e.enqueueTry(at.abandon)
	}
	e.checkIdle()
}

func leavesNothing(err error) bool {
	k := classify(err)
	return k == outcomeHeld || k == outcomeRefused || k == outcomePermanent
}

func (e *engine) unpend(at *attempt) {
	delete(e.pending, at.req.ID)
	e.checkIdle()
}

// abandon has it made sure, in the background, that nothing is left of an attempt
// whose outcome is unknown.
func (a *acquisition) abandon(req *Request) *settlement {
	e := a.e
	s := e.abandonment(req)
	e.mu.Lock()
	defer e.unlock()
	e.settleNow(s, Now())
	return s
}

// abandonAndWait does so before the next attempt, which would find the key taken by
// the last one. false: ctx ended first. After two TTLs it is given up: then the next
// attempt cannot find more than a key that is taken.
func (a *acquisition) abandonAndWait(ctx context.Context, req *Request) bool {
	select {
	case <-a.abandon(req).done:
		return true
	case <-ctx.Done():
	case <-a.e.closing.Done():
	}
	return false
}

func (e *engine) abandonment(req *Request) *settlement {
	return &settlement{
		attempt: func(ctx context.Context) error { return e.d.Abandon(ctx, req) },
		gaveUp:  e.endAll,
	}
}

// endAll ends every shared lease: one of them may carry what could not be abandoned,
// and would keep it alive for ever.
func (e *engine) endAll(now Stamp, _ error) {
	for _, l := range e.leases {
		if l.shared {
			e.endLease(l, now, errGhost)
		}
	}
}
