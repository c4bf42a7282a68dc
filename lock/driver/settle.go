package driver

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// settlement is something that must be made sure at the server: that a grant is
// released, an attempt of unknown outcome abandoned, a lease ended. It is tried
// until it is known to be done, detached from any caller, for at most two TTLs:
// by then the server has let go of whatever has a lease of its own, and what a
// shared lease keeps is freed by ending that.
//
// The fields are guarded by engine.mu, until done is closed.
type settlement struct {
	alarm
	attempt func(context.Context) error
	settled func(now Stamp, err error) // done, with nil or ErrLost; called with the engine locked
	lapsed  func(now Stamp) bool       // may be nil: what is to be freed has ended by itself by now
	gaveUp  func(now Stamp, err error) // not done in time; called with the engine locked
	caller  context.Context            // of a release, for its event
	began   Stamp
	tries   int
	doubts  int  // tries that may have done it, whatever they answered
	running bool // a try is under way
	late    bool // it has not returned in time, and holds no place any more
	queued  bool
	over    bool
	known   bool  // the outcome, once over
	err     error // of the last try, or nil
	done    chan struct{}
}

var errGhost = errors.New("a lock whose release could not be confirmed may be left on this lease")

// Of tries in the background so many run at once; at Close there is little time.
const (
	settlers        = 16
	settlersAtClose = 64
)

// settle has s tried in the background, from now on.
func (e *engine) settle(s *settlement, now Stamp) {
	e.addSettlement(s, now)
	e.enqueueTry(s, now)
}

// settleLater has s tried from a later moment on, unless it is hastened. Its time counts
// from then: it may be longer until then than it is given.
func (e *engine) settleLater(s *settlement, now Stamp, after time.Duration) {
	e.addSettlement(s, now)
	if s.over {
		return
	}
	s.began = now.Add(after)
	e.set(s, s.began)
}

// settleNow has s tried at once, whatever else is being tried: a caller waits for it,
// or a driver must not go on granting on a lease that is over.
func (e *engine) settleNow(s *settlement, now Stamp) {
	e.addSettlement(s, now)
	e.try(s, now)
}

func (e *engine) addSettlement(s *settlement, now Stamp) {
	s.began = now
	s.done = make(chan struct{})
	if e.life.Err() != nil { // Close has given up on the server
		s.err = lock.ErrClosed
		e.conclude(s, now, false)
		return
	}
	e.unsettled[s] = struct{}{}
}

// lastMoment is when s is given up.
func (e *engine) lastMoment(s *settlement) Stamp { return s.began.Add(2 * e.cfg.TTL) }

// ring implements ringer: the time for the next try has come, a try has not returned
// in time, or none is left.
func (s *settlement) ring(e *engine, now Stamp) {
	switch {
	case now >= e.lastMoment(s):
		e.freePlace(s, now)
		e.conclude(s, now, false)
	case s.running:
		e.freePlace(s, now)
		e.set(s, e.lastMoment(s))
	default:
		e.enqueueTry(s, now)
	}
}

// freePlace takes the place of a try that is over, or does not return, from it.
func (e *engine) freePlace(s *settlement, now Stamp) {
	if s.running && !s.late {
		s.late = true
		e.settling--
		e.startTries(now)
	}
}

func (e *engine) enqueueTry(s *settlement, now Stamp) {
	if s.over || s.running || s.queued {
		return
	}
	s.queued = true
	e.queue = append(e.queue, s)
	e.startTries(now)
	if s.queued && !e.isClosed { // Close ends what is left itself
		e.set(s, e.lastMoment(s))
	}
}

// startTries starts what waits for a place, as far as there are places and time is left.
func (e *engine) startTries(now Stamp) {
	places := settlers
	if e.isClosed {
		places = settlersAtClose
	}
	for e.settling < places && len(e.queue) > 0 {
		s := e.queue[0]
		e.queue[0] = nil
		e.queue = e.queue[1:]
		s.queued = false
		switch {
		case s.over, s.running:
		case now >= e.lastMoment(s):
			e.conclude(s, now, false)
		default:
			e.try(s, now)
		}
	}
}

// try makes one try of s in a goroutine of its own.
func (e *engine) try(s *settlement, now Stamp) {
	if e.startTry(s, now) {
		go e.runTry(s)
	}
}

// startTry notes that a try of s is under way. false: none is needed any more.
func (e *engine) startTry(s *settlement, now Stamp) bool {
	if s.over {
		return false
	}
	limit := e.tryLimit()
	e.set(s, min(now.Add(limit+limit/4), e.lastMoment(s)))
	s.running, s.late = true, false
	s.tries++
	e.settling++
	return true
}

// runTry makes the try that was started. A panic of the driver's, which the caller whose
// goroutine this is may survive, is a try of unknown outcome.
func (e *engine) runTry(s *settlement) {
	err := errPanic
	defer func() {
		e.mu.Lock()
		defer e.unlock()
		e.tried(s, Now(), err)
	}()
	ctx := withBound(e.life, e.tryLimit())
	defer ctx.cancel()
	err = s.attempt(ctx)
}

// tryLimit is how long one try may take.
func (e *engine) tryLimit() time.Duration { return min(e.cfg.TTL/3, 5*time.Second) }

// tried takes the answer to a try.
func (e *engine) tried(s *settlement, now Stamp, err error) {
	e.freePlace(s, now)
	s.running = false
	if s.over {
		return
	}
	s.err = ownLimit(err)
	switch {
	case err == nil:
		e.conclude(s, now, true)
	case errors.Is(err, lock.ErrLost):
		if s.doubts > 0 || s.lapsed != nil && s.lapsed(now) {
			s.err = nil // a try of ours may have done it, or time has: nobody has lost anything
		}
		e.conclude(s, now, true)
	case now >= e.lastMoment(s) || e.life.Err() != nil:
		e.conclude(s, now, false)
	default:
		if !LeavesNothing(err) {
			s.doubts++
		}
		d := min(10*time.Millisecond<<min(s.tries-1, 10), e.cfg.TTL/6)
		e.set(s, min(now.Add(d/2+rand.N(d/2+1)), e.lastMoment(s)))
	}
}

// conclude ends s: done, or given up.
func (e *engine) conclude(s *settlement, now Stamp, done bool) {
	if s.over {
		return
	}
	s.over, s.known = true, done
	e.alarms.unset(s)
	delete(e.unsettled, s)
	if !done && s.err == nil {
		s.err = errLimit
	}
	switch {
	case done && s.settled != nil:
		s.settled(now, s.err)
	case !done && s.gaveUp != nil:
		s.gaveUp(now, s.err)
	}
	close(s.done)
	e.checkIdle()
}

// drop ends s without a try: there is nothing to settle.
func (e *engine) drop(s *settlement, now Stamp) {
	s.err = nil
	e.conclude(s, now, true)
}

// await waits until s is done or given up, ctx ends, or the limit of a call that began then
// is over.
// If ctx has ended, the server gets a moment to answer all the same: callers
// release with the context of work that was cancelled.
func (s *settlement) await(ctx context.Context, began Stamp) (err error, known bool) {
	select {
	case <-s.done:
		return s.err, s.known
	default:
	}
	limited, cancel := withLimit(ctx, callLimit-Now().Sub(began))
	defer cancel()
	select {
	case <-s.done:
		return s.err, s.known
	case <-limited.Done():
		if ctx.Err() == nil {
			return errLimit, false
		}
	}
	grace := time.NewTimer(releaseGrace)
	defer grace.Stop()
	select {
	case <-s.done:
		return s.err, s.known
	case <-grace.C:
		return ctxError(ctx), false
	}
}

// why adds to the error of one who does not wait any more what the last try of s has
// failed with.
func (s *settlement) why(e *engine, err error) error {
	e.mu.Lock()
	defer e.unlock()
	if s.err == nil || errors.Is(err, s.err) {
		return err
	}
	return fmt.Errorf("%w (%v)", err, s.err) //nolint:errorlint // a text: the end of the waiting is the cause
}

// checkIdle tells Close when nothing is left to wait for.
func (e *engine) checkIdle() {
	if e.idle != nil && len(e.unsettled) == 0 && len(e.pending) == 0 {
		close(e.idle)
		e.idle = nil
	}
}

// hastenAll has everything tried now.
func (e *engine) hastenAll(now Stamp) {
	e.queue = slices.Grow(e.queue, len(e.unsettled))
	for s := range e.unsettled {
		e.enqueueTry(s, now)
	}
}
