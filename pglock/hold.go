package pglock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// hold is a lock that a session has at the server, or has asked for. The server would let
// a session in again that holds a lock, and count; here it holds each lock at most once,
// and the shared grants of one Locker are counted on this side: so whatever came of a
// request, freeing once is right.
//
// The fields are guarded by session.mu.
type hold struct {
	name
	mode    lock.Mode
	users   int           // grants, and attempts that may become some
	settled chan struct{} // closed when the first request was answered
	doubted bool          // that has failed, and may have taken the lock or not
	all     bool          // the session may hold more for it than the lock, once: see settle
}

// grant is one lock held, or an attempt that may hold it.
type grant struct {
	b      *backend
	s      *session
	h      *hold
	id     string
	asked  *call // the request that brings it
	first  bool  // it asked for the lock itself, and did not join others
	token  lock.Token
	proved driver.Stamp

	mu    sync.Mutex
	freed *call // the request that frees it
	again bool  // a slice of a wait is over, and the session is still the waiter's
	done  bool  // the server has nothing of it any more
}

// Token implements driver.Grant.
func (g *grant) Token() (lock.Token, bool) { return g.token, !g.b.cfg.NoTokens }

// Lease implements driver.Grant.
func (g *grant) Lease() driver.Lease { return g.s }

// Proved implements driver.Grant. The request that took the lock proves the session, as
// every other does.
func (g *grant) Proved() driver.Stamp { return g.proved }

// Release implements driver.Grant.
func (g *grant) Release(ctx context.Context) error { return g.free(ctx) }

// errCollision is for two keys with one number.
func errCollision(other string) error {
	return driver.Permanent(fmt.Errorf("the number of its lock is also that of %q, which this Locker holds; "+
		"choose another key or namespace", other))
}

// take has the session ask for a lock, or join those that hold it shared already. What
// came of it is in g.asked.
func (s *session) take(ctx context.Context, g *grant, n name, mode lock.Mode, how manner) error {
	for {
		if err := s.enter(ctx); err != nil {
			return err
		}
		pending, err := s.takeOrJoin(g, n, mode, how)
		s.leave()
		if err != nil || pending == nil {
			return err
		}
		select {
		case <-pending:
		case <-ctx.Done():
			return driver.Refused(ctx.Err())
		}
	}
}

// takeOrJoin sends a request for g; or returns what is to be waited for first, if another
// one's is under way. The caller has entered.
func (s *session) takeOrJoin(g *grant, n name, mode lock.Mode, how manner) (pending <-chan struct{}, err error) {
	if err := s.over(); err != nil {
		return nil, refused(err) // nothing was sent
	}
	s.mu.Lock()
	h := s.holds[n.number]
	switch {
	case h == nil:
		h = &hold{name: n, mode: mode, users: 1, settled: make(chan struct{})}
		s.holds[n.number] = h
		s.mu.Unlock()
		g.h, g.first = h, true
		c := s.newCall()
		c.then = func() { s.settle(h, c) }
		g.start(c)
		s.send(c, s.toTake(mode, how, n))
		return nil, nil
	case h.key != n.key:
		s.mu.Unlock()
		return nil, errCollision(h.key)
	case h.mode != lock.ModeShared || mode != lock.ModeShared: // a ghost of ours, which is being seen to
		s.mu.Unlock()
		return nil, lock.ErrHeld
	}
	select {
	case <-h.settled:
	default:
		s.mu.Unlock()
		return h.settled, nil
	}
	if h.doubted { // whoever asked is about to free what there may be
		s.mu.Unlock()
		return nil, driver.Refused(errDoubted)
	}
	h.users++
	s.mu.Unlock()
	g.h = h
	c := s.newCall()
	g.start(c)
	s.send(c, toJoin(how, n))
	return nil, nil
}

var errDoubted = errors.New("another's request for the lock has failed, and is being seen to")

// start notes the request of g, for Abandon to find it.
func (g *grant) start(c *call) {
	g.proved = driver.Now()
	g.asked = c
	g.b.register(g)
}

// toJoin is the request to join those who hold a lock shared.
func toJoin(how manner, n name) []byte {
	if how == tryPast {
		return message(statementDraw, n.number)
	}
	return message(statementJoin, n.number, n.flag)
}

// toTake is the request for a lock.
func (s *session) toTake(mode lock.Mode, how manner, n name) []byte {
	switch {
	case how == tryPast:
		return message(statementTryPast, n.number)
	case mode == lock.ModeShared && how == wait:
		return message(statementWaitShared, n.number, n.flag)
	case mode == lock.ModeShared:
		return message(statementTryShared, n.number, n.flag)
	case how == wait:
		return message(statementWait, n.number, n.flag)
	case s.direct && s.b.cfg.NoTokens:
		return function(functionTry, n.number)
	default:
		return message(statementTry, n.number, n.flag)
	}
}

// toFree is the request that frees a lock.
func (s *session) toFree(mode lock.Mode, n int64) []byte {
	switch {
	case mode == lock.ModeShared && s.direct:
		return function(functionFreeShared, n)
	case mode == lock.ModeShared:
		return message(statementFreeShared, n)
	case s.direct:
		return function(functionFree, n)
	default:
		return message(statementFree, n)
	}
}

// settle takes the answer to the first request for h. If the server says that the lock is
// taken, there is nothing to free. Only a lock that it surely has can be joined: a join
// does not ask for it.
func (s *session) settle(h *hold, c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.value < -1 {
		c.value, h.all = -1-c.value, true // twice
	}
	if c.busy() && s.holds[h.number] == h {
		delete(s.holds, h.number)
	}
	h.doubted = c.err != nil || !c.known
	// A wait that has failed may have been granted all the same: the flag's lock to a
	// reader, or the lock itself a second time, if waitFunction had it already.
	if c.err != nil && s.waits && (h.mode == lock.ModeShared || s.quiet) {
		h.all = true
	}
	close(h.settled)
}

// busy says whether a complete answer is that the lock is taken.
func (c *call) busy() bool { return c.err == nil && c.known && c.value <= 0 }

// free frees what the server may have of g. It returns ErrLost if it had none. It may be
// called again, also by another goroutine.
func (g *grant) free(ctx context.Context) error {
	if err := g.asked.await(ctx); err != nil && ctx.Err() != nil {
		return err
	}
	if g.first && g.asked.busy() {
		g.over()
		return nil
	}
	c, err := g.release(ctx)
	if err != nil {
		return err
	}
	err = c.await(ctx)
	pgErr := new(pgconn.PgError)
	switch {
	case g.s.dead() != nil:
		if err := g.s.bury(ctx); err != nil {
			return err
		}
		g.over()
		if c.sent {
			return nil // it was held until it was given back, and the session's end has freed it
		}
		return lock.ErrLost
	case err == nil && !c.known:
		g.s.die(errPooled)
		return errPooled
	case err == nil:
		g.over()
		if c.value == 0 {
			return lock.ErrLost
		}
		return nil
	case errors.As(err, &pgErr): // it may hold the lock or not: not for long
		g.s.die(fmt.Errorf("a lock could not be freed: %w", err))
	}
	return err
}

// release sends the request that frees g, once; if others share the lock, there is
// nothing to send.
func (g *grant) release(ctx context.Context) (*call, error) {
	g.mu.Lock()
	c := g.freed
	g.mu.Unlock()
	if c != nil {
		return c, nil
	}
	s, h := g.s, g.h
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.leave()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.freed != nil {
		return g.freed, nil
	}
	s.mu.Lock()
	h.users--
	last := h.users == 0
	if last && s.holds[h.number] == h {
		delete(s.holds, h.number)
	}
	s.mu.Unlock()
	if !last {
		g.freed = s.unasked(1)
		return g.freed, nil
	}
	request := s.toFree(h.mode, h.number)
	if h.all {
		request = message(statementFreeAll)
	}
	g.freed = s.send(s.newCall(), request)
	return g.freed, nil
}

// over notes that the server has nothing of g any more. A session that waits is free then,
// unless its waiter keeps it.
func (g *grant) over() {
	g.mu.Lock()
	first, kept := !g.done, g.again
	g.done = true
	g.mu.Unlock()
	if !first {
		return
	}
	g.b.unregister(g)
	if g.s.waits && !kept {
		g.b.waiters.put(g.s)
	}
}

// keep has the waiter of g keep the session for its next slice. false: it is free already,
// for Abandon was first to find that all is over.
func (g *grant) keep() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.again = !g.done
	return g.again
}

// part ends that. Whoever found meanwhile that all is over has left the session to the
// waiter.
func (g *grant) part() {
	g.mu.Lock()
	left := g.again && g.done
	g.again = false
	g.mu.Unlock()
	if left {
		g.b.waiters.put(g.s)
	}
}
