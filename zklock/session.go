package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// maxPaths bounds the paths of a session's ephemeral nodes, in bytes. When a session ends
// the server writes all of them into one record, and one that is greater than its
// jute.maxbuffer, 1 MiB, it cannot read at its next start (ZOOKEEPER-4306).
var maxPaths = 512 << 10

// sendBuffer is more than any request has: package zk cuts its longest, that sets watches
// again, at 128 KiB. Its own choice is 1.5 MiB for each connection.
const sendBuffer = 256 << 10

// session is a driver.Lease: a session at the servers, with a zk.Conn of its own. All
// grants on it live and die together.
type session struct {
	b       *backend
	link    *link
	conn    *zk.Conn
	events  <-chan zk.Event // closed when the goroutines of conn have ended
	watches *watches
	pulse   pulse

	usable chan struct{} // closed when it has been announced to the engine
	// These are set before usable is closed.
	id     int64
	name   string       // the ID, in names of nodes
	node   string       // ephemeral, for heartbeats
	opened driver.Stamp // before it was opened: its server has counted from then or later

	mu        sync.Mutex
	announced bool
	paths     int           // bytes of the paths of its ephemeral nodes
	ended     chan struct{} // closed when it is over, or given up
	cause     error         // why, after ended
	quiet     driver.Stamp  // when the last of it can have been heard; 0: it may still be
	closing   sync.Once
	closed    chan struct{} // closed when conn is
}

// newSession begins to open a session. It goes on until it has one, or is ended: what
// several callers wait for depends on the context of none.
func (b *backend) newSession() (*session, error) {
	s := &session{
		b: b, link: newLink(b.cfg, b.servers),
		usable: make(chan struct{}), ended: make(chan struct{}), closed: make(chan struct{}),
	}
	s.watches = newWatches(s)
	s.link.greet, s.link.gone = s.greeted, s.lose
	var err error
	s.conn, s.events, err = zk.Connect(b.servers, b.cfg.TTL,
		zk.WithDialer(s.link.dial), zk.WithHostProvider(s.link), zk.WithEventCallback(s.event),
		zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithMaxConnBufferSize(sendBuffer))
	if err != nil {
		return nil, err
	}
	go s.prepare() // detached from whoever asked for it: see above
	return s, nil
}

// silent drops what package zk says of connections: the link tells it by errors.
type silent struct{}

func (silent) Printf(string, ...any) {}

// greeted is told of each connection that carries the session, before it is used.
func (s *session) greeted(id int64, gen uint64, began driver.Stamp) {
	if gen == 1 {
		s.id, s.name, s.opened = id, sessionText(id), began
		s.node = sessionNode(s.b.cfg.Root, s.name)
	}
	s.pulse.connected(gen, began)
}

// prepare makes a new session fit for use, and announces it.
func (s *session) prepare() {
	for s.link.await(s.link.life) == nil {
		err := s.setUp(s.link.life)
		if err == nil {
			break
		}
		if !unanswered(err) {
			s.end(err)
		}
		if s.over() != nil {
			break
		}
	}
	if s.over() != nil {
		s.b.drop(s)
		s.close(context.Background()) // bounded by itself
		return
	}
	s.b.host.Keep(s, s.opened) // before anybody can be granted anything on it
	s.mu.Lock()
	s.announced = true
	s.mu.Unlock()
	if err := s.over(); err != nil {
		s.b.host.LeaseLost(s, err)
		return
	}
	close(s.usable)
}

func (s *session) setUp(ctx context.Context) error {
	for _, a := range s.b.cfg.Auth {
		if _, err := call(ctx, s, func() (struct{}, error) {
			return struct{}{}, s.conn.AddAuth(a.Scheme, []byte(a.Credentials))
		}); err != nil {
			return err
		}
	}
	return s.makeNode(ctx)
}

// makeNode makes the node for heartbeats, and the directories.
func (s *session) makeNode(ctx context.Context) error {
	for {
		_, err := s.create(ctx, s.node, s.b.cfg.Owner, zk.FlagEphemeral)
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists): // by a request whose answer was lost: its name is ours alone
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
		if err := s.makeDirs(ctx); err != nil {
			return err
		}
	}
}

// makeDirs makes what there is not of the root and the directories in it.
func (s *session) makeDirs(ctx context.Context) error {
	root := s.b.cfg.Root
	var dirs []string
	for i, c := range root {
		if c == '/' && i > 0 {
			dirs = append(dirs, root[:i])
		}
	}
	for _, dir := range append(dirs, root, sessionsDir(root), locksDir(root)) {
		there, err := call(ctx, s, func() (bool, error) { ok, _, err := s.conn.Exists(dir); return ok, err })
		if err != nil {
			return err
		}
		if there {
			continue
		}
		if _, err := s.create(ctx, dir, "", zk.FlagPersistent); err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return err
		}
	}
	return nil
}

func (s *session) create(ctx context.Context, path, data string, flags int32) (string, error) {
	return call(ctx, s, func() (string, error) { return s.conn.Create(path, []byte(data), flags, s.b.cfg.ACL) })
}

// makeLock makes the node of a lock. It is a container where the server has them, which
// removes one that has been empty for a while.
func (s *session) makeLock(ctx context.Context, dir string) error {
	for {
		_, err := call(ctx, s, func() (string, error) {
			return s.conn.CreateContainer(dir, nil, zk.FlagContainer, s.b.cfg.ACL)
		})
		if unknownCode(err) { // a server before 3.5
			_, err = s.create(ctx, dir, "", zk.FlagPersistent)
		}
		switch {
		case err == nil, errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return err
		}
		if err := s.makeDirs(ctx); err != nil {
			return err
		}
	}
}

// await waits until the session is usable, but not for servers of which none answers. Its
// error is marked: nothing was sent for whoever waits.
func (s *session) await(ctx context.Context) error {
	for {
		failed, err := s.link.failing()
		switch cause := s.over(); {
		case cause != nil && driver.LeavesNothing(cause): // a fault that will not mend, perhaps
			return cause
		case cause != nil:
			return driver.Refused(cause)
		case err != nil:
			return driver.Refused(err)
		}
		select {
		case <-s.usable:
			return nil
		case <-failed:
		case <-s.ended:
		case <-ctx.Done():
			return driver.Refused(context.Cause(ctx))
		}
	}
}

// event is called by package zk, and must not block.
func (s *session) event(ev zk.Event) {
	switch ev.Type {
	case zk.EventNodeDeleted, zk.EventNodeDataChanged:
		s.watches.told(ev.Path, ev.Type == zk.EventNodeDeleted)
	}
}

// over returns why the session is over, or nil.
func (s *session) over() error {
	select {
	case <-s.ended:
		return s.cause
	default:
		return nil
	}
}

// end has nothing granted on the session any more.
func (s *session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over() == nil {
		s.cause = cause
		close(s.ended)
	}
}

// lose takes word that the session is no more, or of no use.
func (s *session) lose(cause error) {
	s.end(cause)
	s.mu.Lock()
	announced := s.announced
	s.mu.Unlock()
	if announced {
		s.b.host.LeaseLost(s, cause) // calls End
		return
	}
	s.link.cut() // has prepare see to it, which may wait for a connection
}

// Term implements driver.Lease.
func (s *session) Term() time.Duration { return s.b.term }

// End implements driver.Lease: the server removes the session, with all its nodes, or,
// where it cannot be told, when its time is over. For nothing keeps it any more.
func (s *session) End(ctx context.Context) error {
	s.end(errOver)
	s.b.drop(s)
	s.close(ctx)
	return nil
}

// close closes the connection, and tells the server if that can be reached soon.
func (s *session) close(ctx context.Context) {
	s.closing.Do(func() {
		go s.shut() // Close of a zk.Conn has no context
	})
	select {
	case <-s.closed:
	case <-ctx.Done():
		s.link.cut()
	}
}

// shut closes conn, and returns when its goroutines have ended.
func (s *session) shut() {
	defer close(s.closed)
	soon := time.AfterFunc(min(s.b.cfg.TTL/4, time.Second), s.link.cut) // conn would wait for a server that is mute
	defer soon.Stop()
	if !s.link.carried() {
		s.link.cut()
	}
	s.conn.Close()
	for range s.events {
	}
	s.link.cut()
	s.mu.Lock()
	s.quiet = driver.Now()
	s.mu.Unlock()
}

// gone says whether the servers surely have nothing of the session any more: they said so,
// or have not heard of it for longer than they keep one.
func (s *session) gone() bool {
	cause := s.over()
	if cause != nil && !errors.Is(cause, errOver) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.quiet != 0 && driver.Now().Sub(s.quiet) > s.b.cfg.TTL+s.b.cfg.Tick
}

// Nothing in package zk has a context. call and ask make its calls, for a session that is
// carried by a connection, or as soon as it is. What f does later, if it is left, is as if it
// had been done in time, and not told. Their errors are marked: see fault.

// call runs f where it can be left.
func call[T any](ctx context.Context, s *session, f func() (T, error)) (T, error) {
	if _, err := s.link.ready(ctx); err != nil {
		var none T
		return none, s.fault(err)
	}
	return leave(ctx, s, f)
}

// ask is call without a goroutine of its own, where time is not short.
func ask[T any](ctx context.Context, s *session, f func() (T, error)) (T, error) {
	gen, err := s.link.ready(ctx)
	if err != nil {
		var none T
		return none, s.fault(err)
	}
	return askOn(ctx, s, gen, f)
}

func leave[T any](ctx context.Context, s *session, f func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	var none T
	results := make(chan result, 1)
	go func() {
		value, err := f()
		results <- result{value, err}
	}()
	select {
	case r := <-results:
		return r.value, s.fault(r.err)
	case <-s.ended:
		return none, s.fault(errOver)
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// askOn is ask on a connection. To hand a call to another goroutine takes a good part of
// what a server nearby needs to answer, so f runs on this one, and that it returns at the end
// of ctx is seen to by closing the connection. It is then not the caller who breaks what
// others use, but the server, which has been silent for longer than a heartbeat puts up with.
func askOn[T any](ctx context.Context, s *session, gen uint64, f func() (T, error)) (T, error) {
	end, bounded := ctx.Deadline()
	if bounded && time.Until(end) < s.b.patience {
		return leave(ctx, s, f)
	}
	if bounded {
		asked := driver.Now()
		stop := context.AfterFunc(ctx, func() {
			if driver.Now().Sub(asked) >= s.b.patience {
				s.link.reset(gen)
			}
		})
		defer stop()
	}
	value, err := f()
	return value, s.fault(err)
}

// remove removes a node of the session's own.
func (s *session) remove(ctx context.Context, path string) error {
	_, err := ask(ctx, s, func() (struct{}, error) { return struct{}{}, s.conn.Delete(path, -1) })
	return err
}

// children returns the names of the children of a node.
func (s *session) children(ctx context.Context, dir string) ([]string, error) {
	return ask(ctx, s, func() ([]string, error) { names, _, err := s.conn.Children(dir); return names, err })
}

// reserve counts the path of a node that is about to be made. false: the session has
// too many.
func (s *session) reserve(path int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paths+path > maxPaths && s.paths > 0 {
		return false
	}
	s.paths += path
	return true
}

// free takes a path off the count.
func (s *session) free(path int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths -= path
}

// lostWith says that the session is over, and why.
func lostWith(cause error) error { return fmt.Errorf("%w: %w", lock.ErrLost, cause) }
