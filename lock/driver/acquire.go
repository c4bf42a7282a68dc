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
	began Stamp

	cancel context.CancelFunc // of the wait

	mu        sync.Mutex
	pass      *pass
	over      bool
	contended bool
	asked     Stamp // when the call under way began
	answered  bool  // the server has said something since, or is not expected to
	seen      error // what ended the last look at the key: nil (none yet), ErrHeld, or why it could not be asked
}

func (e *engine) acquire(ctx context.Context, key string, try bool, opts []lock.Option) (lock.Handle, error) {
	a := &acquisition{e: e, ctx: ctx, key: key, try: try, began: Now()}
	h, err := a.run(opts)
	if e.cfg.Observe != nil {
		a.tell(h, err)
	}
	if err != nil {
		return nil, fmt.Errorf("holdfast: acquire %q: %w", brief(key), err)
	}
	return h, nil
}

// tell posts the event of the outcome.
func (a *acquisition) tell(h *handle, err error) {
	e := a.e
	e.mu.Lock()
	defer e.unlock()
	now := Now()
	ev := lock.Event{Kind: lock.Failed, Key: a.key, Took: now.Sub(a.began), Err: err}
	if err == nil {
		ev.Kind, ev.Token, ev.Left = lock.Acquired, h.token, h.valid(now)
	}
	e.post(a.ctx, ev)
}

func (a *acquisition) run(opts []lock.Option) (*handle, error) {
	if err := a.check(opts); err != nil {
		return nil, err
	}
	ctx, cancel := a.bound()
	defer cancel()
	a.cancel = cancel
	pass, err := a.e.gates.enter(ctx, a.key, a.set.Mode, a.noWait(), a.busy)
	if err != nil {
		a.see(err)
		return nil, a.ended()
	}
	a.enter(pass)
	var h *handle
	defer func() {
		a.finish()
		if h == nil { // after a panic of the driver's, too
			a.e.gates.setTaken(pass, false) // what is still to be settled does not know
			a.e.gates.leave(pass)
		}
	}()
	h, err = a.ask(ctx)
	return h, err
}

// enter notes that the gate is passed. What was seen before was not at the server.
func (a *acquisition) enter(p *pass) {
	a.mu.Lock()
	a.pass, a.seen = p, nil
	a.mu.Unlock()
}

// finish makes a driver's late calls of Busy harmless.
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
// limit; without a deadline, a single attempt has one. That the engine is closed is looked at beside it, as every acquisition would
// otherwise hang on one context of the engine's.
func (a *acquisition) bound() (context.Context, context.CancelFunc) {
	switch {
	case a.noWait():
		return withLimit(a.ctx)
	case a.set.Wait == lock.NoLimit:
		return context.WithCancel(a.ctx)
	default:
		return context.WithTimeout(a.ctx, a.set.Wait)
	}
}

// ended says why the wait is over, and what was last seen of the key. What was seen
// before a question that the server has left unanswered for a while counts no more.
func (a *acquisition) ended() error {
	const while = 250 * time.Millisecond
	a.mu.Lock()
	seen := a.seen
	if !a.answered && a.asked != 0 && Now().Sub(a.asked) > while && errors.Is(seen, lock.ErrHeld) {
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
		a.e.gates.setTaken(pass, false)
	}
}

// failed sees that the key could not be asked for. That the wait was over before it was
// asked for is no news of the key.
func (a *acquisition) failed(ctx context.Context, err error) {
	if isContextError(err) && ended(ctx) {
		return
	}
	a.see(unavailable(ownLimit(err)))
}

// busy notes that the key is taken. Drivers call it as Request.Busy.
func (a *acquisition) busy() {
	a.mu.Lock()
	if a.over {
		a.mu.Unlock()
		return
	}
	a.seen, a.answered = lock.ErrHeld, true
	first := !a.contended
	a.contended = true
	pass := a.pass
	a.mu.Unlock()
	if pass != nil {
		a.e.gates.setTaken(pass, true)
	}
	if first && a.e.cfg.Observe != nil {
		a.e.mu.Lock()
		a.e.post(a.ctx, lock.Event{Kind: lock.Contended, Key: a.key, Took: Now().Sub(a.began)})
		a.e.unlock()
	}
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
		if req.slices > 0 && (kind == outcomeRefused || kind == outcomePermanent) {
			a.abandon(req) // this call did nothing, but one before it may have
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
		case outcomeRefused:
			a.failed(ctx, err)
			if a.noWait() {
				return nil, a.ended()
			}
			req = a.newRequest() // the next one may be on another lease
		case outcomeUnknown:
			a.failed(ctx, err)
			s := a.abandon(req)
			if a.noWait() {
				return nil, a.ended()
			}
			if !a.await(ctx, s) {
				return nil, a.ended()
			}
			req = a.newRequest()
		}
		if !a.sleep(ctx, backoff(n, a.e.cfg.TTL)) {
			return nil, a.ended()
		}
	}
}

// once makes one attempt, up to the handle.
func (a *acquisition) once(ctx context.Context, req *request) (*handle, error) {
	a.mu.Lock()
	a.asked, a.answered = Now(), req.slices > 0 // the next slice of a wait is answered at its end
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
