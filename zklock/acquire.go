package zklock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

var (
	errAbandoned = errors.New("the attempt was abandoned")
	errVanished  = errors.New("the node in line has vanished")
)

// Acquire implements driver.Driver. An attempt that does not wait is made once more if it
// meets the end of its session: that says nothing of the key.
func (b *backend) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	g, over, err := b.acquire(ctx, r)
	if over && !r.Wait && ctx.Err() == nil {
		g, _, err = b.acquire(ctx, r)
	}
	return g, err
}

// acquire makes one attempt; over says that it met the end of its session.
func (b *backend) acquire(ctx context.Context, r *driver.Request) (g driver.Grant, over bool, err error) {
	p, err := b.placeFor(ctx, r)
	if err != nil {
		return nil, false, err
	}
	held, err := p.acquire(ctx)
	switch {
	case err == nil && b.forget(p):
		p.s.watches.hold(held.path, r.ID, held.free)
		return held, false, nil
	case err == nil: // it was abandoned meanwhile, and its node is gone
		return nil, false, driver.Refused(errAbandoned)
	case p.s.over() != nil: // what is left goes with the session
		b.giveUp(p)
		return nil, true, driver.Refused(p.s.over())
	case p.has().path != "" && driver.LeavesNothing(err) && p.leave(ctx) == nil: // a fault that will not mend
	case !p.leftNothing():
		return nil, false, bare(err)
	}
	b.giveUp(p)
	if driver.LeavesNothing(err) {
		return nil, false, err
	}
	return nil, false, driver.Refused(err)
}

// bare takes from err what it says of one request, which is not true of the attempt.
func bare(err error) error {
	if driver.LeavesNothing(err) {
		return errors.New(err.Error())
	}
	return err
}

// place is a request's place in the line for a lock, from before its node is made until it
// is granted, or surely gone. One call of Acquire is made on it at a time, and Abandon may
// come at any moment of that, if the engine has left the call behind: then the node goes
// between any two steps of the one who stands in line.
type place struct {
	r    *driver.Request
	s    *session
	dir  string // the lock's node
	base string // name of its own node, without the number
	size int    // bytes of its path

	mu        sync.Mutex
	abandoned bool
	making    chan struct{} // closed when the request that makes the node has returned; nil: there is none
	doubt     bool          // a request was made whose outcome is unknown
	node      node          // that it has, or the zero value
}

// node is a place's node in line, as it was when it was made, or found.
type node struct {
	path  string
	token lock.Token
	alone bool // there was no other: the lock is the place's
}

// placeFor returns the place of r: a new one, or, when the engine asks again, the old.
func (b *backend) placeFor(ctx context.Context, r *driver.Request) (*place, error) {
	b.mu.Lock()
	p := b.places[r.ID]
	b.mu.Unlock()
	if p != nil {
		return p, nil
	}
	dir := lockNode(b.cfg.Root, r.Key)
	size := len(dir) + len("/") + prefixLen + seqLen
	s, err := b.sessionFor(ctx, size)
	if err != nil {
		return nil, err
	}
	p = &place{
		r: r, s: s, dir: dir, size: size,
		base: memberPrefix(r.Mode == lock.ModeShared, r.ID, s.name),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.places[r.ID] = p
	return p, nil
}

// forget takes p off the books. false: it was not there any more.
func (b *backend) forget(p *place) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	found := b.places[p.r.ID] == p
	if found {
		delete(b.places, p.r.ID)
	}
	return found
}

// giveUp forgets p, which has no node, or one that goes with its session.
func (b *backend) giveUp(p *place) {
	if b.forget(p) {
		p.s.free(p.size)
	}
}

// leftNothing says whether the server surely has no node of p, and will not have one.
func (p *place) leftNothing() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.making == nil && !p.doubt && p.node.path == ""
}

// acquire stands in line until it is p's turn. A connection that breaks costs p neither its
// node nor its turn: package zk connects again, and the session is the same.
func (p *place) acquire(ctx context.Context) (*grant, error) {
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		g, err := p.once(ctx)
		switch {
		case err == nil:
			return g, nil
		case errors.Is(err, errVanished), errors.Is(err, zk.ErrConnectionClosed) && p.s.over() == nil:
			continue
		case !errors.Is(err, errUnreachable), !p.r.Wait, p.leftNothing():
			return nil, err
		}
		if err := p.s.link.await(ctx); err != nil {
			return nil, err
		}
	}
}

// once gets into line, if p is not in it, and looks who is in front, until it is p's turn.
func (p *place) once(ctx context.Context) (*grant, error) {
	n, err := p.enter(ctx)
	if err != nil {
		return nil, err
	}
	for {
		_, again := p.s.link.generation()
		own, ahead, next, err := p.look(ctx, n)
		if err != nil {
			return nil, err
		}
		if own.seq < 0 || own.seq >= lastSequence {
			return nil, p.startAnew(ctx)
		}
		if ahead == 0 {
			return &grant{s: p.s, path: n.path, size: p.size, token: n.token}, nil
		}
		p.r.Busy()
		if !p.r.Wait {
			if err := p.leave(ctx); err != nil {
				return nil, err
			}
			return nil, lock.ErrHeld
		}
		if err := p.wait(ctx, p.dir+"/"+next, again); err != nil {
			return nil, err
		}
	}
}

// wait waits until there is a reason to look again: until something has happened to the node
// in front, usually.
func (p *place) wait(ctx context.Context, front string, again <-chan struct{}) error {
	events, err := p.s.watches.arm(ctx, front)
	switch {
	case errors.Is(err, zk.ErrNoNode):
		return nil
	case err != nil:
		return err
	}
	// After a new connection package zk sets all watches again, and does not say whether
	// that has worked: so they are not all that p trusts in.
	slow := time.NewTimer(p.s.b.cfg.TTL)
	defer slow.Stop()
	select {
	case <-events:
		p.s.watches.fired(front, events)
	case <-again:
	case <-slow.C:
	case <-p.s.ended:
		return p.s.fault(errOver)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// enter makes p's node, or finds the one that an earlier call has made.
func (p *place) enter(ctx context.Context) (node, error) {
	for {
		if err := p.settle(ctx); err != nil {
			return node{}, err
		}
		if n := p.has(); n.path != "" {
			return n, nil
		}
		err := p.make(ctx)
		if errors.Is(err, zk.ErrNoNode) {
			err = p.s.makeLock(ctx, p.dir)
		}
		if err != nil {
			return node{}, err
		}
	}
}

// make asks once for p's node. In the same transaction it writes to the lock's node, whose
// new state tells two things: the number of the transaction, which is the token, and which
// package zk keeps from us otherwise; and whether there is anybody else in line.
func (p *place) make(ctx context.Context) error {
	gen, err := p.s.link.ready(ctx)
	if err != nil {
		return p.s.fault(err)
	}
	making := make(chan struct{})
	p.mu.Lock()
	if p.abandoned {
		p.mu.Unlock()
		return driver.Refused(errAbandoned)
	}
	p.making = making
	p.mu.Unlock()
	_, err = askOn(ctx, p.s, gen, func() (struct{}, error) {
		defer close(making)
		return struct{}{}, p.made(p.s.conn.Multi(
			&zk.CreateRequest{Path: p.dir + "/" + p.base, Data: []byte(p.r.Owner), Acl: p.s.b.cfg.ACL, Flags: zk.FlagEphemeralSequential},
			&zk.SetDataRequest{Path: p.dir, Data: []byte(p.r.Key), Version: -1},
		))
	})
	return err
}

// made takes the answer to make.
func (p *place) made(results []zk.MultiResponse, err error) error {
	if err == nil && (len(results) != 2 || results[1].Stat == nil) {
		err = fmt.Errorf("the server's answer to two requests has %d parts", len(results))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.making = nil
	p.doubt = err != nil && unanswered(err)
	if err == nil {
		lockNode := results[1].Stat
		p.node = node{results[0].String, lock.Token(lockNode.Mzxid), lockNode.NumChildren == 1} //nolint:gosec // it is not negative
	}
	return err
}

// settle waits for a request for p's node that is still under way, and finds out what one
// has done whose answer was lost.
//
// A write comes first, and its answer proves that this server knows all that was agreed on
// before. A request of the old connection cannot come later: it is either before the write,
// in the order of one server, which closes the old connection before it takes up the new one,
// or refused because the session has moved. (A sync would be the cheaper way to that, but is
// answered by a leader, too, that others have deposed.)
func (p *place) settle(ctx context.Context) error {
	p.mu.Lock()
	making := p.making
	p.mu.Unlock()
	if making != nil {
		select {
		case <-making:
		case <-p.s.ended:
			return p.s.fault(errOver)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p.mu.Lock()
	doubt := p.doubt
	p.mu.Unlock()
	if !doubt {
		return nil
	}
	if err := p.s.beat(ctx); err != nil {
		return err
	}
	names, err := p.s.children(ctx, p.dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	for _, name := range names {
		if _, ok := parseMember(name); ok && strings.HasPrefix(name, p.base) {
			return p.adopt(ctx, p.dir+"/"+name)
		}
	}
	p.keep(node{})
	return nil
}

// adopt takes a node that was found for p's own, if it is the session's.
func (p *place) adopt(ctx context.Context, path string) error {
	stat, err := ask(ctx, p.s, func() (*zk.Stat, error) { _, stat, err := p.s.conn.Get(path); return stat, err })
	switch {
	case errors.Is(err, zk.ErrNoNode):
		p.keep(node{})
		return nil
	case err != nil:
		return err
	case stat.EphemeralOwner != p.s.id:
		return driver.Permanent(fmt.Errorf("the node %s is not the session's that its name says; delete it", path))
	}
	p.keep(node{path: path, token: lock.Token(stat.Czxid)}) //nolint:gosec // it is not negative
	return nil
}

// keep notes what is known for certain of p's node.
func (p *place) keep(n node) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doubt, p.node = false, n
}

// has returns p's node, or the zero value if there is none that is known of.
func (p *place) has() node {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.node
}

// look finds p's node in the line, how many keep p from the lock, and who of them is next to
// it.
func (p *place) look(ctx context.Context, n node) (own member, ahead int, next string, err error) {
	own, ok := parseMember(n.path[len(p.dir)+1:])
	if !ok {
		return own, 0, "", driver.Permanent(fmt.Errorf("the server has given a node the name %q", n.path))
	}
	if n.alone {
		return own, 0, "", nil
	}
	names, err := p.s.children(ctx, p.dir)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return own, 0, "", err
	}
	if !slices.Contains(names, own.name) {
		p.keep(node{}) // somebody has deleted it
		return own, 0, "", errVanished
	}
	ahead, next = blockers(names, own)
	return own, ahead, next, nil
}

// leave removes p's node, if there is one.
func (p *place) leave(ctx context.Context) error {
	n := p.has()
	if n.path == "" {
		return nil
	}
	if err := p.s.remove(ctx, n.path); err != nil && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	p.keep(node{})
	return nil
}

// startAnew has the lock's node made anew, which is out of numbers, as soon as nobody is in
// line any more. Until then nobody new gets into line.
func (p *place) startAnew(ctx context.Context) error {
	if err := p.leave(ctx); err != nil {
		return err
	}
	if err := p.s.remove(ctx, p.dir); err != nil && !errors.Is(err, zk.ErrNotEmpty) && !errors.Is(err, zk.ErrNoNode) {
		return err
	}
	return driver.Refused(fmt.Errorf("the sequence numbers of %s are used up; it is made anew when nobody holds the lock or waits for it", p.dir))
}

// Abandon implements driver.Driver.
func (b *backend) Abandon(ctx context.Context, r *driver.Request) error {
	b.mu.Lock()
	p := b.places[r.ID]
	b.mu.Unlock()
	if p == nil {
		return nil
	}
	p.mu.Lock()
	p.abandoned = true
	p.mu.Unlock()
	err := p.settle(ctx)
	if err == nil {
		err = p.leave(ctx)
	}
	if err != nil && p.s.over() == nil {
		return bare(err)
	}
	b.giveUp(p) // or the session is over, and its nodes go with it
	return nil
}
