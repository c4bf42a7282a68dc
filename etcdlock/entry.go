package etcdlock

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// entry is a request's place in the queue of a lock: a key at the server, attached to the
// lease of a session. The first in the queue, by create revision, holds the lock; and of
// shared requests all before whom there is no exclusive one. It is the Grant as well.
//
// Its name is its own from before it is first sent until it is surely gone, and so is what a
// late copy of a request of its own could do to it.
//
// The fields below the line are guarded by backend.mu.
type entry struct {
	b     *backend
	id    string // of the request
	queue string
	mode  lock.Mode
	// ---
	session   *session // on whose lease it was last sent
	name      string
	token     int64  // its create revision, once that is known; it is not changed any more then
	there     bool   // it is at the server, as far as is known
	deletedAt int64  // the revision at which a key of its name was last seen deleted
	granted   bool   // and not yet to be released
	unguard   func() // ends the watch over it, if it has one: see guard

	// Of the requests for it:
	running   bool // Acquire is under way
	underWay  bool // the request that creates it is
	doubt     bool // one was sent and not answered: it may be carried out yet
	abandoned bool // none may be sent any more
	finished  bool // nor can what was sent be carried out any more
	shutting  bool // one that shuts it out is under way, or may be carried out yet
	retired   bool // one that deletes whatever has its name may be carried out yet
}

// Token implements driver.Grant.
func (e *entry) Token() (lock.Token, bool) { return lock.Token(e.token), true } //nolint:gosec // revisions are positive

// Lease implements driver.Grant.
func (e *entry) Lease() driver.Lease { return e.session }

// Proved implements driver.Grant: a key that is put on a lease does not extend it.
func (e *entry) Proved() driver.Stamp { return e.session.proved }

// Release implements driver.Grant.
func (e *entry) Release(ctx context.Context) error {
	there, doubt := e.b.releasing(e)
	if !there {
		return lock.ErrLost
	}
	if doubt { // an earlier copy of the request may come late
		err := e.b.shutOut(ctx, e)
		if err == nil {
			e.b.settled(e)
		}
		return err
	}
	gone, err := e.b.delete(ctx, e)
	if err != nil {
		return err
	}
	e.b.released(e)
	if gone {
		return lock.ErrLost
	}
	return nil
}

// delete deletes the key of e, and says whether it was gone already. If it is not answered a
// copy of it may come late, and delete the next key of the name: so there will be none.
func (b *backend) delete(ctx context.Context, e *entry) (gone bool, err error) {
	resp, err := b.do(ctx, clientv3.OpDelete(e.name))
	if err != nil {
		if !driver.LeavesNothing(err) {
			b.retire(e)
		}
		return false, err
	}
	return resp.Del().Deleted == 0, nil
}

func (b *backend) retire(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.retired = true
}

// enter puts a request on the books, before anything is sent for it: Abandon must find it
// there.
func (b *backend) enter(r *driver.Request) *entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.entries[r.ID]
	if e == nil {
		e = &entry{b: b, id: r.ID, queue: queueName(b.prefix, r.Key), mode: r.Mode}
		b.entries[r.ID] = e
	}
	e.running = true
	return e
}

// leave notes that Acquire has ended.
func (b *backend) leave(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.running = false
	b.tidy(e)
}

// tidy takes off the books what needs not be there: an entry of which nothing is at the
// server, nor can be, with its name; and of one that is granted all but its name.
func (b *backend) tidy(e *entry) {
	s := e.session
	if e.running || e.doubt || e.shutting || e.there && !e.granted && !s.over {
		return
	}
	delete(b.entries, e.id)
	if !e.granted && !e.retired && s != nil && s.names[e.name] == e {
		delete(s.names, e.name)
	}
}

// begin notes that a request to create e is about to be sent, and returns the barrier that it
// has to name. Nothing is sent any more for what was abandoned, nor on a lease that was given
// up: the one would be a ghost, and the other granted to nobody.
func (b *backend) begin(e *entry, s *session) (barrier int64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case e.abandoned:
		return 0, errAbandoned
	case s.over:
		return 0, errSessionEnded
	case e.session != s && e.doubt:
		return 0, errors.New("an earlier copy of the request is in doubt, on another lease")
	case e.session != s:
		s.seat(e)
	}
	e.underWay = true
	return s.barrier, nil
}

// answered notes that the request is over, with that error.
func (b *backend) answered(e *entry, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.underWay = false
	if err != nil && !driver.LeavesNothing(err) && !e.finished {
		e.doubt = true
	}
}

// created notes that e is at the server, or was before it was shut out.
func (b *backend) created(e *entry, token int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.token, e.there = token, !e.finished
}

// grant makes a grant of e, unless it is too late for that.
func (b *backend) grant(e *entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case e.abandoned:
		return errAbandoned
	case e.session.over:
		return errSessionEnded
	case e.deletedAt > e.token:
		e.there = false
		return errRemoved
	}
	e.granted = true
	e.session.guard.add(e)
	return nil
}

// releasing notes that e is no grant any more, so that it is no loss if it is deleted, and says
// whether it is there, and whether a copy of its request is in doubt. Its name is its own until
// it is surely gone.
func (b *backend) releasing(e *entry) (there, doubt bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ungrant(e)
	e.shutting = e.shutting || e.doubt
	return e.there, e.shutting
}

func (b *backend) ungrant(e *entry) {
	e.granted = false
	if e.unguard != nil {
		e.unguard()
		e.unguard = nil
	}
}

// released notes that e has gone from where it was. Of an earlier copy of the request that is
// in doubt, it says nothing.
func (b *backend) released(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.there = false
	b.tidy(e)
}

// settled notes that nothing is left of e, nor will be.
func (b *backend) settled(e *entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e.doubt, e.shutting, e.there, e.finished = false, false, false, true
	b.tidy(e)
}

// deleted takes note that an own key was deleted, at that revision.
func (b *backend) deleted(s *session, name string, revision int64) {
	b.mu.Lock()
	e := s.names[name]
	lost := false
	if e != nil {
		e.deletedAt = max(e.deletedAt, revision)
		if lost = e.granted && e.deletedAt > e.token; lost { // and not one that had its name before
			b.ungrant(e)
			e.there = false
			b.tidy(e)
		}
	}
	b.mu.Unlock()
	if lost {
		b.host.GrantLost(e.id, errRemoved)
	}
}
