package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// session is a lease, which all entries of a Locker are attached to, and the watches that tell
// what becomes of them. It is opened when it is first needed, and when the last one has
// ended.
//
// It has a barrier: a key, attached to the lease, whose revision every request to create an
// entry must name. To abandon a request whose answer was lost is to put the barrier anew, in
// the same transaction that deletes the entry: a copy of the request that is still on its way
// names the old revision, and comes to nothing. Requests of others that were on their way are
// refused, too, which says so, and are sent again. A tombstone for each request would do as
// well, but on a lease that lives as long as the Locker it would stay as long.
type session struct {
	b      *backend
	id     clientv3.LeaseID
	name   string        // of the lease
	bar    string        // the name of its barrier
	where  clientv3.Op   // reads where that is
	ttl    time.Duration // that was granted
	proved driver.Stamp  // before it was opened
	ended  <-chan struct{}
	stop   context.CancelFunc
	sight  sight
	guard  guard

	unanswered atomic.Bool // the last renewal

	// Guarded by backend.mu.
	over    bool
	endedAt driver.Stamp
	barrier int64             // its last revision that is known: 0, it has not been put yet
	names   map[string]*entry // that are in use
}

// opening is a session that is being opened.
type opening struct {
	done    chan struct{}
	session *session
	err     error
}

// session returns the open session, and opens one if there is none.
func (b *backend) session(ctx context.Context) (*session, error) {
	b.mu.Lock()
	if s := b.current; s != nil {
		b.mu.Unlock()
		return s, nil
	}
	o := b.opening
	if o == nil {
		o = &opening{done: make(chan struct{})}
		// All who come meanwhile wait for the same one, and none of them may end it by giving
		// up: so it has a goroutine of its own, which lasts as long as one request.
		if !b.run(func() { b.open(o) }) {
			b.mu.Unlock()
			return nil, driver.Refused(lock.ErrClosed)
		}
		b.opening = o
	}
	b.mu.Unlock()
	select {
	case <-o.done:
		return o.session, o.err
	case <-ctx.Done():
		return nil, driver.Refused(ctx.Err())
	}
}

func (b *backend) open(o *opening) {
	s, err := b.newSession()
	b.mu.Lock()
	b.opening = nil
	if err == nil && s.over { // the engine did not want it
		err = driver.Refused(errSessionEnded)
	}
	if err == nil {
		b.current = s
		b.forget()
	}
	b.mu.Unlock()
	o.session, o.err = s, err
	close(o.done)
}

// newSession asks for a lease. If its answer is lost there is one that nobody knows of, with
// nothing attached, which ends by itself.
func (b *backend) newSession() (*session, error) {
	if b.client.Ctx().Err() != nil {
		return nil, errClientClosed
	}
	ctx, cancel := context.WithTimeout(b.life, b.limit)
	defer cancel()
	proved := driver.Now()
	resp, err := b.client.Grant(ctx, int64(b.ttl/time.Second))
	if err != nil {
		err = mark(b.explain(err))
		if !driver.LeavesNothing(err) { // of what is being acquired, it does
			err = driver.Refused(err)
		}
		return nil, err
	}
	life, stop := context.WithCancel(b.life)
	s := &session{
		b: b, id: resp.ID, name: leaseName(resp.ID), bar: barrierName(b.prefix, leaseName(resp.ID)), ttl: time.Duration(resp.TTL) * time.Second, proved: proved,
		ended: life.Done(), stop: stop, names: make(map[string]*entry),
	}
	s.where = clientv3.OpGet(s.bar, clientv3.WithKeysOnly())
	s.sight = newSight(life, s)
	s.guard = guard{s: s, granted: make(chan struct{}, 1), ask: make(chan struct{}, 1)}
	b.host.Keep(s, proved)                     // before anybody can be granted anything on it
	b.running.Go(func() { s.guard.run(life) }) // by b.open, which runs
	if s.ttl != b.asked {
		b.host.Warn(fmt.Errorf("a dead holder keeps others out for %v, and not for %v: etcd counts in whole seconds, and has a least time to live", s.ttl, b.asked))
	}
	return s, nil
}

// Term implements driver.Lease. It is what the server granted: it counts from when it has
// carried out the request, by a clock that does not jump, looks for what is over twice a
// second, and gives all leases their whole time anew when it has a new leader. So it ends no
// lease early, unless it was told to keep checkpoints of them: see the package comment.
func (s *session) Term() time.Duration { return s.ttl }

// End implements driver.Lease.
func (s *session) End(ctx context.Context) error {
	s.end()
	ctx, cancel := context.WithTimeout(ctx, s.b.limit)
	defer cancel()
	_, err := s.b.client.Revoke(ctx, s.id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return s.b.fault(err)
	}
	s.b.purge(s)
	return nil
}

// purge takes off the books what was on a lease that is surely gone.
func (b *backend) purge(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range s.names {
		e.doubt, e.shutting, e.retired, e.there, e.finished = false, false, false, false, true
		b.tidy(e)
	}
}

// forget takes off the books what nobody will settle any more: of a session that ended so long
// ago that the engine has given up both what was to be abandoned on it and its end. What may be
// left at the server ends with the lease, which nobody renews. backend.mu is locked.
func (b *backend) forget() {
	now := driver.Now()
	for id, e := range b.entries {
		if s := e.session; !e.running && s != nil && s.over && now.Sub(s.endedAt) > 4*s.ttl {
			delete(b.entries, id)
		}
	}
}

// end has nothing granted on s any more, and ends the waits on it. Who holds an entry on it
// is told by the engine.
func (s *session) end() {
	b := s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.over {
		return
	}
	s.over, s.endedAt = true, driver.Now()
	if b.current == s {
		b.current = nil
	}
	s.sight.leave()
	s.stop()
}

// lost ends s, as the server does not have it any more.
func (s *session) lost(cause error) {
	s.end()
	s.b.host.LeaseLost(s, cause)
}

// renew makes one attempt to renew the lease. The engine has read the clock, and bounds it.
//
// Where a user logs in, the client does so anew for each renewal, and takes one endpoint for
// that and the next for the renewal: of two, one of which is mute, each attempt would take the
// mute one for the same half. So if the last had no answer, three are made at once. When they
// have logged in, or try to, one goes on to another endpoint than it began with.
func (s *session) renew(ctx context.Context) error {
	s.sight.check()
	attempts := 1
	if s.unanswered.Load() {
		attempts = 3
	}
	err := s.renewBy(ctx, attempts)
	s.unanswered.Store(isContextError(err))
	return err
}

// renewBy makes attempts at once, and takes the first that is answered.
func (s *session) renewBy(ctx context.Context, attempts int) error {
	if attempts == 1 {
		return s.renewOnce(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // of what goes on when one is answered
	answers := make(chan error, attempts)
	begun := 0
	s.b.mu.Lock()
	for range attempts {
		if s.b.run(func() { answers <- s.renewOnce(ctx) }) {
			begun++
		}
	}
	s.b.mu.Unlock()
	err := driver.Refused(lock.ErrClosed)
	for range begun {
		if err = <-answers; err == nil || errors.Is(err, lock.ErrLost) {
			break
		}
	}
	return err
}

func (s *session) renewOnce(ctx context.Context) error {
	resp, err := s.b.client.KeepAliveOnce(ctx, s.id)
	switch {
	case errors.Is(err, rpctypes.ErrLeaseNotFound):
		return lock.ErrLost
	case err != nil:
		return s.b.fault(err)
	case time.Duration(resp.TTL)*time.Second < s.ttl:
		return fmt.Errorf("the server renewed a lease of %v for %d s only", s.ttl, resp.TTL)
	}
	return nil
}

// seat gives e a name on the lease. Usually each lock has one: what is more can be shared, or
// is in doubt. backend.mu is locked.
func (s *session) seat(e *entry) {
	e.session = s
	for n := 0; ; n++ {
		e.name = entryName(e.queue, e.mode, s.name, n)
		if s.names[e.name] == nil {
			break
		}
	}
	e.queue = e.name[:len(e.queue)] // one text less to keep
	s.names[e.name] = e
}

// raise notes that the barrier is there.
func (s *session) raise(barrier int64) {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.barrier = barrier
}

func (s *session) barrierNow() int64 {
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	return s.barrier
}
