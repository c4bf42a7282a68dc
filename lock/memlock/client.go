package memlock

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// client is the driver of one Locker: it sends requests over a link.
type client struct {
	server *Server
	host   driver.Host
	locker lock.Locker
	ttl    time.Duration
	link   link
	slow   atomic.Int64 // how long answers are on their way

	mu      sync.Mutex
	session *session // nil until needed, and after its end
}

func (c *client) Features() lock.Features {
	f := lock.Fencing | lock.SharedMode | lock.Leased
	if !c.server.ownLeases {
		f |= lock.FIFO
	}
	return f
}

func (c *client) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	sent := driver.Now()
	h := &hold{key: r.Key, id: r.ID, owner: r.Owner, mode: r.Mode, waits: r.Wait}
	g := &grant{c: c, hold: h, proved: sent}
	if c.server.ownLeases {
		h.lease = &serverLease{ttl: r.TTL}
		return g, c.acquire(ctx, r, g, nil)
	}
	session, err := c.openSession(ctx)
	if err != nil {
		return nil, err
	}
	h.lease, g.session = session.lease, session
	answers := make(chan error, 1)
	if r.Wait {
		h.answer = func(err error) { c.link.send(func() { answers <- err }) }
	}
	return g, c.acquire(ctx, r, g, answers)
}

func (c *client) acquire(ctx context.Context, r *driver.Request, g *grant, answers <-chan error) error {
	granted := false
	err := c.request(ctx, Op{Kind: "acquire", Key: r.Key}, func() error {
		got, err := c.server.acquire(g.hold)
		if err == nil {
			g.hold, g.token = got, got.token
			granted = got.token != 0
		}
		return err
	})
	if err == nil && !granted {
		r.Busy()
		err = c.await(ctx, g, answers)
	}
	if errors.Is(err, errAbandoned) || errors.Is(err, errSessionEnded) {
		return driver.Refused(err)
	}
	return err
}

// await waits in the server's queue.
func (c *client) await(ctx context.Context, g *grant, answers <-chan error) error {
	select {
	case err := <-answers:
		if err == nil {
			c.server.mu.Lock()
			g.token = g.hold.token
			c.server.mu.Unlock()
		}
		return err
	case <-g.session.ended:
		return errSessionEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *client) Abandon(ctx context.Context, r *driver.Request) error {
	return c.request(ctx, Op{Kind: "abandon", Key: r.Key}, func() error {
		c.server.abandon(r.Key, r.ID, r.TTL)
		return nil
	})
}

func (c *client) Renew(ctx context.Context, leases []driver.Lease) []error {
	errs := make([]error, len(leases))
	err := c.request(ctx, Op{Kind: "renew"}, func() error {
		for i, l := range leases {
			if !l.(renewable).renew() {
				errs[i] = lock.ErrLost
			}
		}
		return nil
	})
	if err == nil {
		return errs
	}
	failed := make([]error, len(leases)) // the other one may still be written by a request on its way
	for i := range failed {
		failed[i] = err
	}
	return failed
}

func (c *client) Inspect(ctx context.Context, key string) (info lock.Info, err error) {
	var got lock.Info
	err = c.request(ctx, Op{Kind: "inspect", Key: key}, func() error {
		got = c.server.inspect(key)
		return nil
	})
	if err != nil {
		return lock.Info{}, err
	}
	return got, nil
}

func (c *client) Close(context.Context) error {
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	delete(c.server.clients, c.locker)
	return nil
}

// request has the server carry out serve, with its mutex held, and waits for the
// answer.
func (c *client) request(ctx context.Context, op Op, serve func() error) error {
	op.Locker = c.locker
	done := make(chan error, 1)
	c.link.send(func() {
		err := c.serve(op, serve)
		reply := func() { c.link.send(func() { done <- err }) }
		if d := time.Duration(c.slow.Load()); d > 0 {
			time.AfterFunc(d, reply)
			return
		}
		reply()
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *client) serve(op Op, serve func() error) error {
	s := c.server
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail == nil {
		return serve()
	}
	if err := s.fail(op); err != nil {
		return err
	}
	err := serve()
	op.Reply = true
	if lost := s.fail(op); lost != nil {
		return lost
	}
	return err
}

// openSession returns the session that all grants of the Locker share.
func (c *client) openSession(ctx context.Context) (*session, error) {
	c.mu.Lock()
	open := c.session
	c.mu.Unlock()
	if open != nil {
		return open, nil
	}
	n := &session{c: c, ended: make(chan struct{}), proved: driver.Now()}
	n.lease = &serverLease{
		ttl:     c.ttl,
		lost:    func() { c.link.send(func() { c.host.LeaseLost(n, errSessionEnded) }) },
		revoked: func(id string) { c.link.send(func() { c.host.GrantLost(id, errRevoked) }) },
	}
	err := c.request(ctx, Op{Kind: "open"}, func() error { c.server.openSession(n.lease); return nil })
	if err != nil {
		return nil, err // a session that was opened nevertheless holds nothing and ends by itself
	}
	c.mu.Lock()
	if c.session != nil { // another caller was faster; this one ends by itself, too
		open = c.session
		c.mu.Unlock()
		return open, nil
	}
	c.mu.Unlock()
	c.host.Keep(n, n.proved) // before anybody can be granted anything on it
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-n.ended:
		return nil, driver.Refused(errSessionEnded)
	default:
	}
	if c.session == nil {
		c.session = n
	}
	return c.session, nil
}

type renewable interface{ renew() bool }

// session is a Lease that many grants share.
type session struct {
	c      *client
	lease  *serverLease
	proved driver.Stamp // when it was opened
	ended  chan struct{}
	once   sync.Once
}

func (s *session) Term() time.Duration { return s.lease.ttl }

func (s *session) renew() bool { return s.c.server.renew(s.lease, nil) }

func (s *session) End(ctx context.Context) error {
	s.once.Do(func() {
		s.c.mu.Lock()
		defer s.c.mu.Unlock()
		if s.c.session == s {
			s.c.session = nil
		}
		close(s.ended)
	})
	return s.c.request(ctx, Op{Kind: "end"}, func() error { s.c.server.endSession(s.lease); return nil })
}

// grant is a Grant and, where grants do not share one, its own Lease.
type grant struct {
	c       *client
	hold    *hold
	session *session
	token   lock.Token
	proved  driver.Stamp
}

func (g *grant) Token() (lock.Token, bool) { return g.token, true }

func (g *grant) Lease() driver.Lease {
	if g.session != nil {
		return g.session
	}
	return g
}

func (g *grant) Proved() driver.Stamp {
	if g.session != nil {
		return g.session.proved
	}
	return g.proved
}

func (g *grant) Release(ctx context.Context) error {
	s, h := g.c.server, g.hold
	return g.c.request(ctx, Op{Kind: "release", Key: h.key}, func() error {
		if s.find(h.key, h.id) == nil {
			return lock.ErrLost
		}
		s.remove(h.key, func(other *hold) bool { return other.id == h.id })
		return nil
	})
}

func (g *grant) Term() time.Duration { return g.hold.lease.ttl }

func (g *grant) renew() bool { return g.c.server.renew(g.hold.lease, g.hold) }

func (g *grant) End(ctx context.Context) error {
	if err := g.Release(ctx); !errors.Is(err, lock.ErrLost) {
		return err
	}
	return nil
}

// link is the connection between a client and its server. While it is stalled, what
// is sent in either direction waits, in order.
type link struct {
	mu      sync.Mutex
	stalled int
	waiting []func()
}

// send delivers, now or after the stall. It is called with or without the server's
// mutex; deliver must fit.
func (l *link) send(deliver func()) {
	l.mu.Lock()
	if l.stalled > 0 {
		l.waiting = append(l.waiting, deliver)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	deliver()
}

func (l *link) stall() (heal func()) {
	l.mu.Lock()
	l.stalled++
	l.mu.Unlock()
	return sync.OnceFunc(l.heal)
}

// heal delivers what waits, and then lets pass what comes. What is sent meanwhile, the
// answers among it, comes after.
func (l *link) heal() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled == 1 && len(l.waiting) > 0 {
		deliver := l.waiting[0]
		l.waiting = l.waiting[1:]
		l.mu.Unlock()
		deliver()
		l.mu.Lock()
	}
	l.stalled--
}
