package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// acquisition is one call of Acquire or TryAcquire.
type acquisition struct {
	e     *engine
	ctx   context.Context // the caller's
	key   string
	try   bool
	set   lock.Settings
	began Stamp // unless nobody observes

	cancel context.CancelFunc // of the wait

	owed *settlement // of what the last request left, or nil

	mu        sync.Mutex
	pass      *pass
	over      bool
	contended bool
	unheard   bool  // the server could not be asked, and the observer knows
	asked     Stamp // when the call under way began, if the key was seen taken before
	answered  bool  // the server has said something since, or is not expected to
	seen      error // what ended the last look at the key: nil (none yet), ErrHeld, or why it could not be asked
}

func (e *engine) acquire(ctx context.Context, key string, try bool, opts []lock.Option) (lock.Handle, error) {
	a := &acquisition{e: e, ctx: ctx, key: key, try: try}
	if e.cfg.Observe != nil {
		a.began = Now()
	}
	h, err := a.run(opts)
	if err != nil {
		a.tellFailed(err)
		return nil, fmt.Errorf("holdfast: acquire %q: %w", brief(key), err)
	}
	return h, nil
}

func (a *acquisition) tellFailed(err error) {
	if a.e.cfg.Observe == nil {
		return
	}
	a.e.mu.Lock()
	defer a.e.unlock()
	a.e.post(a.ctx, lock.Event{Kind: lock.Failed, Key: a.key, Took: Now().Sub(a.began), Err: err})
}

func (a *acquisition) run(opts []lock.Option) (*handle, error) {
	if err := a.check(opts); err != nil {
		return nil, err
	}
	ctx, cancel := a.bound()
	defer cancel()
	a.cancel = cancel
	pass, err := a.e.gates.enter(ctx, a.key, a.set.Mode, a.noWait(), a.waiting)
	if err != nil {
		a.finish()
		a.see(err)
		return nil, a.ended()
	}
	a.enter(pass, ended(ctx))
	var h *handle
	defer func() {
		a.finish()
		if h == nil { // after a panic of the driver's, too
			a.e.gates.untake(pass, Now()) // what is still to be settled does not know
			a.e.gates.leave(pass)
		}
	}()
	h, err = a.ask(ctx)
	return h, err
}

// enter notes that the gate is passed. What was seen before, by others, counts no more,
// unless it is too late to ask.
func (a *acquisition) enter(p *pass, late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.pass = p
	if !late {
		a.seen = nil
	}
}

// finish makes late calls harmless: of busy by the driver, and of waiting by whoever was before it.
func (a *acquisition) finish() {
	a.mu.Lock()
	a.over = true
	a.mu.Unlock()
}

// check refuses what is wrong before anything is sent or waited for.
func (a *acquisition) check(opts []lock.Option) (err error) {
	if err := lock.CheckKey(a.key); err != nil {
		return err
	}
	if a.set, err = lock.Resolve(opts...); err != nil {
		return err
	}
	switch {
	case a.try && a.set.Wait > 0:
		return fmt.Errorf("%w: TryAcquire does not wait; call Acquire with Wait(%v)", lock.ErrInvalid, a.set.Wait)
	case a.set.Margin >= a.e.cfg.TTL/2:
		return fmt.Errorf("%w: margin %v is not below half of the ttl %v", lock.ErrInvalid, a.set.Margin, a.e.cfg.TTL)
	case a.set.Mode == lock.ModeShared && a.e.Features()&lock.SharedMode == 0:
		return fmt.Errorf("this backend has no shared mode: %w", errors.ErrUnsupported)
	case a.e.closing.Err() != nil:
		return lock.ErrClosed
	case a.ctx.Err() != nil:
		return ctxError(a.ctx)
	}
	return nil
}

func (a *acquisition) noWait() bool { return a.try || a.set.Wait == 0 }

// bound returns the context of the wait: it ends with the caller's and with the wait's
// limit; without a deadline, a single attempt has one. That the engine is closed is
// looked at beside it, as every acquisition would otherwise hang on one context of the
// engine's.
func (a *acquisition) bound() (context.Context, context.CancelFunc) {
	switch {
	case a.noWait() && a.e.inline(a.ctx):
		ctx := withBound(a.ctx, callLimit)
		return ctx, ctx.cancel
	case a.noWait():
		return withLimit(a.ctx, callLimit)
	case a.set.Wait == lock.NoLimit:
		return context.WithCancel(a.ctx)
	default:
		return context.WithTimeout(a.ctx, a.set.Wait)
	}
}

// ended says why the wait is over, and what was last seen of the key. What was seen
// before a question that the server has left unanswered for a while counts no more.
func (a *acquisition) ended() error {
	a.mu.Lock()
	seen := a.seen
	if !a.answered && a.asked != 0 && Now().Sub(a.asked) > stale && errors.Is(seen, lock.ErrHeld) {
		seen = nil
	}
	a.mu.Unlock()
	if seen == nil {
		seen = unavailable(errLimit)
	}
	switch {
	case a.e.closing.Err() != nil:
		return lock.ErrClosed
	case ended(a.ctx):
		return fmt.Errorf("%w: %w", ctxError(a.ctx), seen)
	default:
		return seen
	}
}

// see notes why the key could not be asked for. Whether it is taken is not known then,
// for those of this process who stand behind this acquisition either.
func (a *acquisition) see(err error) {
	a.mu.Lock()
	a.seen = err
	pass := a.pass
	a.mu.Unlock()
	if pass != nil {
		a.e.gates.untake(pass, Now())
	}
}

// failed sees that the key could not be asked for. That the wait was over before it was
// asked for is no news of the key.
func (a *acquisition) failed(ctx context.Context, err error) {
	if isContextError(err) && ended(ctx) {
		return
	}
	err = unavailable(ownLimit(err))
	a.see(err)
	if a.noWait() || a.unheard || a.e.cfg.Observe == nil {
		return
	}
	a.unheard = true
	a.e.mu.Lock()
	defer a.e.unlock()
	a.e.post(a.ctx, lock.Event{Kind: lock.Unanswered, Key: a.key, Took: Now().Sub(a.began), Err: err})
}

// busy notes that the key is taken. Drivers call it as Request.Busy.
func (a *acquisition) busy() {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	first, pass := a.taken(), a.pass
	a.mu.Unlock()
	for _, behind := range a.e.gates.take(pass) {
		behind.waiting()
	}
	a.tellContended(first)
}

// waiting notes, at the gate, that the key is taken. It may come late: whoever has been let
// in since asks for itself.
func (a *acquisition) waiting() {
	a.mu.Lock()
	first := !a.over && a.pass == nil && a.taken()
	a.mu.Unlock()
	a.tellContended(first)
}

// taken notes what was seen of the key, with a.mu locked. It says whether for the first time.
func (a *acquisition) taken() bool {
	first := !a.contended
	a.seen, a.answered, a.contended = lock.ErrHeld, true, true
	return first
}

func (a *acquisition) tellContended(first bool) {
	if !first || a.e.cfg.Observe == nil {
		return
	}
	a.e.mu.Lock()
	defer a.e.unlock()
	a.e.post(a.ctx, lock.Event{Kind: lock.Contended, Key: a.key, Took: Now().Sub(a.began)})
}

// ask asks the server until it grants, refuses for good, or the wait ends.
func (a *acquisition) ask(ctx context.Context) (*handle, error) {
	req := a.newRequest()
	for n := 0; ; n++ {
		h, err := a.once(ctx, req)
		if err == nil {
			return h, nil
		}
		kind := classify(err)
		if kind == outcomeUnknown || req.slices > 0 && (kind == outcomeRefused || kind == outcomePermanent) {
			a.abandon(req) // this call, or one before it, may have left something
		}
		switch kind {
		case outcomeOver:
			return nil, a.ended()
		case outcomeAgain:
			req.slices++
			n = -1
			continue
		case outcomePermanent:
			return nil, err
		case outcomeHeld:
			a.busy()
			if a.noWait() {
				return nil, lock.ErrHeld
			}
			req.slices = 0
		case outcomeRefused, outcomeUnknown:
			a.failed(ctx, err)
			if a.noWait() || !a.settled(ctx) {
				return nil, a.ended()
			}
			req = a.newRequest() // the next one may be on another lease
		}
		if !a.sleep(ctx, backoff(n, a.e.cfg.TTL)) {
			return nil, a.ended()
		}
	}
}

// once makes one attempt, up to the handle.
func (a *acquisition) once(ctx context.Context, req *request) (*handle, error) {
	a.mu.Lock()
	a.answered = req.slices > 0 // the next slice of a wait is answered at its end
	if a.contended {
		a.asked = Now()
	}
	a.mu.Unlock()
	grant, err := a.call(ctx, req)
	if err != nil {
		return nil, err
	}
	return a.adopt(ctx, req, grant)
}

// backoff is how long to wait before the n-th next try at a server without a queue.
func backoff(n int, ttl time.Duration) time.Duration {
	d := min(5*time.Millisecond<<min(n, 10), 250*time.Millisecond, ttl/8)
	return d/2 + rand.N(d/2+1)
}

// sleep returns false if the wait ended first.
func (a *acquisition) sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-a.e.closing.Done():
	}
	return false
}
