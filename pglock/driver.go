package pglock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// backend is the driver.
type backend struct {
	cfg     Config
	host    driver.Host
	connect func(context.Context) (*pgconn.PgConn, error)
	limit   time.Duration // of writing a request
	slice   time.Duration // of a wait at the server

	life    context.Context // ends with Close
	end     context.CancelFunc
	running sync.WaitGroup // the goroutines that read, and those that connect

	waiters waiters

	mu       sync.Mutex
	shared   *session
	opening  *opening              // of the shared session
	sessions map[*session]struct{} // those that are not at their end
	attempts map[string]*grant     // by request ID: what may be held and is nobody's yet
	closed   bool
}

// connectLimit is how long it may take to connect, and to make a session of it: several
// round trips, a process to be started, and now and then an epoch to be taken.
const connectLimit = 10 * time.Second

func newBackend(connect func(context.Context) (*pgconn.PgConn, error), cfg Config, host driver.Host) *backend {
	b := &backend{
		cfg: cfg, host: host, connect: connect,
		limit: min(max(cfg.TTL/2, time.Second), 10*time.Second),
		// A renewal that meets a session in the middle of a wait has to wait for that.
		slice:    min(500*time.Millisecond, cfg.TTL/12),
		sessions: make(map[*session]struct{}),
		attempts: make(map[string]*grant),
	}
	b.waiters.b = b
	b.life, b.end = context.WithCancel(context.Background())
	return b
}

// Prompt implements driver.Prompt: whoever waits for an answer looks at its context, too; and
// a connection that takes no request for b.limit, at most 10 s, is closed.
func (b *backend) Prompt() bool { return true }

// Features implements driver.Driver.
func (b *backend) Features() lock.Features {
	if b.cfg.NoTokens {
		return lock.SharedMode
	}
	return lock.Fencing | lock.SharedMode
}

// Acquire implements driver.Driver.
func (b *backend) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	n := nameOf(b.cfg.Namespace, r.Key)
	if r.Wait {
		if s := b.waiters.again(n.number); s != nil {
			return result(b.wait(ctx, s, r, n))
		}
	}
	s, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	g, err := b.attempt(ctx, s, r, n, try)
	if errors.Is(err, errFlag) && !s.raised(ctx, n.flag) {
		g, err = b.attempt(ctx, s, r, n, tryPast)
	}
	if !errors.Is(err, lock.ErrHeld) {
		return result(g, err)
	}
	if !r.Wait {
		return nil, err
	}
	r.Busy()
	if s, _ = b.waiters.get(ctx); s == nil { // why none could be opened is no answer to who holds the key
		if ctx.Err() != nil {
			return nil, driver.Refused(ctx.Err())
		}
		return nil, err // the engine asks again
	}
	b.waiters.contended(s, n.number)
	return result(b.wait(ctx, s, r, n))
}

// wait waits on s, slice after slice.
func (b *backend) wait(ctx context.Context, s *session, r *driver.Request, n name) (*grant, error) {
	raised, up := false, false
	for {
		g, err := b.attempt(ctx, s, r, n, wait)
		if !errors.Is(err, driver.ErrAgain) {
			if raised {
				s.lower(n.flag)
			}
			return g, err
		}
		r.Busy()
		if r.Mode == lock.ModeExclusive && !up {
			up = s.raise(ctx, n.flag)
			raised = up || ctx.Err() != nil
		}
		if ctx.Err() != nil {
			if raised {
				s.lower(n.flag)
			}
			b.waiters.put(s)
			return nil, driver.Refused(ctx.Err())
		}
	}
}

// raise raises the flag of those who wait for a lock alone. It cannot be raised, now and
// then, because somebody is looking at it.
func (s *session) raise(ctx context.Context, flag int64) bool {
	c := s.newCall()
	return s.ask(ctx, c, message(statementRaise, flag)) == nil && c.value == 1
}

// raised says whether it is up, as far as can be learned.
func (s *session) raised(ctx context.Context, flag int64) bool {
	c := s.newCall()
	return s.ask(ctx, c, message(statementRaised, flag)) != nil || c.value != 0
}

// lower takes it down. Nobody waits for the answer: what is sent next on this session
// arrives later.
func (s *session) lower(flag int64) {
	if s.enter(s.b.life) == nil {
		s.send(s.newCall(), message(statementLower, flag))
		s.leave()
	}
}

// result keeps a nil *grant from becoming a driver.Grant that is not nil.
func result(g *grant, err error) (driver.Grant, error) {
	if err != nil {
		return nil, err
	}
	return g, nil
}

// manner is how a lock is asked for.
type manner uint8

const (
	try     manner = iota
	tryPast        // a shared lock, past its flag, which is known to be down
	wait           // for one slice
)

// attempt asks for a lock on s, once.
func (b *backend) attempt(ctx context.Context, s *session, r *driver.Request, n name, how manner) (*grant, error) {
	g := &grant{b: b, s: s, id: r.ID}
	if err := s.take(ctx, g, n, r.Mode, how); err != nil {
		if how == wait {
			b.waiters.put(s)
		}
		return nil, err
	}
	err := g.asked.await(ctx)
	switch {
	case s.over() != nil:
		if err := s.over(); driver.LeavesNothing(err) {
			g.over()
			return nil, err
		}
		return nil, s.over()
	case err != nil && ctx.Err() != nil:
		return nil, err
	case err == nil && g.asked.known && g.asked.value > 0:
		if err = g.draw(ctx); err == nil {
			b.unregister(g)
			return g, nil
		}
	}
	return nil, g.giveUp(ctx, err, how == wait)
}

// giveUp frees what there may be of an attempt that has failed, and returns the error for
// the engine.
func (g *grant) giveUp(ctx context.Context, err error, waited bool) error {
	again := waited && (sliceOver(err) || g.asked.busy()) && g.keep()
	freeErr := g.free(ctx)
	switch {
	case errors.Is(freeErr, errPooled):
		g.over()
		return errPooled
	case freeErr != nil && !errors.Is(freeErr, lock.ErrLost):
		g.part()
		return unknown(freeErr)
	case again:
		return driver.ErrAgain
	case g.asked.busy() && g.asked.value < 0:
		return errFlag
	case g.asked.busy():
		return lock.ErrHeld
	case err == nil:
		return driver.Refused(errSenseless)
	default:
		return refusal(err)
	}
}

// errFlag is for a shared lock at whose flag somebody looks, or has raised it.
var errFlag = fmt.Errorf("%w: somebody waits to hold it alone", lock.ErrHeld)

var errSenseless = errors.New("the server's answer is none of the statement's")

// Abandon implements driver.Driver. What is on its way to the server arrives before what
// frees it, on the same connection; or the backend at the other end of that is terminated,
// and nobody reads it.
func (b *backend) Abandon(ctx context.Context, r *driver.Request) error {
	b.mu.Lock()
	g := b.attempts[r.ID]
	b.mu.Unlock()
	if g == nil {
		return nil
	}
	if err := g.free(ctx); !errors.Is(err, lock.ErrLost) {
		return err
	}
	return nil
}

func (b *backend) register(g *grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempts[g.id] = g
}

func (b *backend) unregister(g *grant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.attempts[g.id] == g {
		delete(b.attempts, g.id)
	}
}

// Renew implements driver.Driver. Every statement tells the server that the session
// lives; this one, that it still is the session's own backend that it reaches.
func (b *backend) Renew(ctx context.Context, leases []driver.Lease) []error {
	errs := make([]error, len(leases))
	calls := make([]*call, len(leases))
	for i, l := range leases {
		s := l.(*session)
		if s.over() != nil || s.waits && b.waiters.retire(s) {
			errs[i] = lock.ErrLost
			continue
		}
		if errs[i] = s.enter(ctx); errs[i] != nil {
			continue
		}
		calls[i] = s.send(s.newCall(), message(statementBeat))
		s.leave()
	}
	for i, c := range calls {
		if c != nil {
			errs[i] = leases[i].(*session).beaten(ctx, c)
		}
	}
	return errs
}

func (s *session) beaten(ctx context.Context, c *call) error {
	err := c.await(ctx)
	switch {
	case s.dead() != nil:
		return lock.ErrLost
	case err == nil && c.value != s.pid:
		s.die(errPooled)
		return lock.ErrLost
	}
	return err
}

// Inspect implements driver.Driver. The server knows no tokens, and not since when a lock
// is held.
func (b *backend) Inspect(ctx context.Context, key string) (lock.Info, error) {
	s, err := b.session(ctx)
	if err != nil {
		return lock.Info{}, err
	}
	c := s.newTextCall()
	if err := s.ask(ctx, c, message(statementInspect, number(b.cfg.Namespace, key))); err != nil {
		return lock.Info{}, refusal(err)
	}
	var info lock.Info
	for _, row := range c.rows {
		if len(row) != 3 {
			continue
		}
		if row[0] != "\x01" {
			info.Waiters++
			continue
		}
		info.Holders = append(info.Holders, lock.Holder{
			Owner:  ownerOf(row[2]),
			Shared: strings.HasPrefix(row[1], "Share"),
		})
	}
	return info, nil
}

// session returns the session that the Locker's grants share.
func (b *backend) session(ctx context.Context) (*session, error) {
	b.mu.Lock()
	if s := b.shared; s != nil {
		b.mu.Unlock()
		return s, nil
	}
	o := b.opening
	if o == nil {
		o = b.open(false)
		if !b.closed {
			b.opening = o
		}
	}
	b.mu.Unlock()
	select {
	case <-o.done:
		return o.s, o.err
	case <-ctx.Done():
		return nil, driver.Refused(ctx.Err())
	}
}

// opening is a session that is being opened, in a goroutine of its own: several callers
// wait for it, and none of their contexts must end it.
type opening struct {
	done chan struct{}
	s    *session
	err  error

	// Of a session that waits; guarded by waiters.mu.
	left  bool // nobody waits for it any more
	taken bool // somebody does, and has it
}

// open opens a session. b is locked.
func (b *backend) open(waits bool) *opening {
	o := &opening{done: make(chan struct{})}
	b.spawn(o, func(ctx context.Context) {
		o.s, o.err = b.newSession(ctx, waits)
		b.opened(o, waits)
	})
	return o
}

// spawn makes connections in a goroutine, and then closes o.done. b is locked.
func (b *backend) spawn(o *opening, f func(ctx context.Context)) {
	if b.closed {
		o.err = driver.Refused(errClosed)
		close(o.done)
		return
	}
	b.running.Go(func() {
		defer close(o.done)
		ctx, cancel := context.WithTimeout(b.life, connectLimit)
		defer cancel()
		f(ctx)
	})
}

// opened announces a session before anything is held on it, and notes it.
func (b *backend) opened(o *opening, waits bool) {
	if o.err == nil {
		b.host.Keep(o.s, o.s.proved)
	}
	if waits {
		if o.err != nil {
			b.waiters.failed()
			return
		}
		b.waiters.opened(o)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opening = nil
	if o.err != nil {
		return
	}
	if o.err = o.s.over(); o.err == nil { // or it has ended so soon
		b.shared = o.s
	}
}

// forget takes a session that is at its end out of where new grants come from.
func (b *backend) forget(s *session) {
	b.mu.Lock()
	_, known := b.sessions[s]
	delete(b.sessions, s)
	if b.shared == s {
		b.shared = nil
	}
	b.mu.Unlock()
	if known && s.waits {
		b.waiters.remove(s)
	}
}

var errClosed = errors.New("the Locker is closed")

// Close implements driver.Driver.
func (b *backend) Close(ctx context.Context) error {
	b.end()
	b.mu.Lock()
	b.closed = true
	left := make([]*session, 0, len(b.sessions))
	for s := range b.sessions {
		left = append(left, s)
	}
	b.mu.Unlock()
	for _, s := range left {
		s.die(errClosed)
	}
	ended := make(chan struct{})
	go func() { b.running.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
