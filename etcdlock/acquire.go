package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

var (
	errSessionEnded = driver.Refused(errors.New("the session has ended"))
	errRemoved      = driver.Refused(errors.New("its key was deleted"))

	errAbandoned = errors.New("the request was abandoned") // not marked: that may be under way
)

// Acquire implements driver.Driver. What nobody holds or waits for takes one transaction, and
// who has to wait is in the queue by the same one.
func (b *backend) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	e := b.enter(r)
	defer b.leave(e)
	s, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	before, err := b.create(ctx, s, e, r)
	for err == nil && before != nobody {
		r.Busy()
		before, err = b.await(ctx, e, before)
	}
	if err == nil {
		err = b.grant(e)
	}
	if err != nil {
		return nil, err
	}
	return e, nil
}

// rival is an entry that must be gone before another can be granted.
type rival struct {
	name  string
	token int64 // its create revision: others may have had its name before
}

var nobody rival

// create puts e into the queue: if there is nobody, or if r waits. It returns who is before
// it. It is idempotent by the ID of r.
func (b *backend) create(ctx context.Context, s *session, e *entry, r *driver.Request) (before rival, err error) {
	for ctx.Err() == nil {
		barrier, err := b.begin(e, s)
		if err != nil {
			return nobody, err
		}
		resp, err := b.do(ctx, e.creation(barrier, r))
		b.answered(e, err)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			s.lost(err)
		}
		if err != nil {
			return nobody, err
		}
		txn := resp.Txn()
		if txn.Succeeded {
			put := txn.Responses[len(txn.Responses)-1].GetResponsePut()
			if own := put.GetPrevKv(); own != nil { // it was there, of an earlier copy
				b.created(e, own.CreateRevision)
				return b.adopt(ctx, e, own)
			}
			b.created(e, txn.Header.Revision)
			return rivalIn(txn.Responses[0]), nil
		}
		if !r.Wait {
			if own := firstKey(txn.Responses[1]); own != nil { // what is in its way is an earlier copy
				return b.adopt(ctx, e, own)
			}
		}
		moved := firstKey(txn.Responses[0]).GetModRevision()
		if moved == barrier {
			return nobody, lock.ErrHeld
		}
		s.raise(moved)
	}
	return nobody, driver.Refused(ctx.Err())
}

// creation returns the transaction that creates e.
//
//	if the barrier stands, and nobody is in its way or r waits:
//	then see who is last in the queue, and put it there
//	else see where the barrier is, and whether e is in its own way
//
// Sent again, by this side or by a client that does so unasked, it tells what was there. To put
// that anew does not change its create revision.
func (e *entry) creation(barrier int64, r *driver.Request) clientv3.Op {
	s := e.session
	stands := clientv3.Compare(clientv3.ModRevision(s.bar), "=", barrier)
	put := clientv3.OpPut(e.name, record(e.id, time.Now(), r.Owner), clientv3.WithLease(s.id), clientv3.WithPrevKV())
	if r.Wait {
		return clientv3.OpTxn([]clientv3.Cmp{stands}, []clientv3.Op{last(e.queue, e.mode), put}, []clientv3.Op{s.where})
	}
	alone := clientv3.Compare(clientv3.CreateRevision(rivals(e.queue, e.mode)), "=", 0).WithPrefix()
	own := clientv3.OpGet(e.name) // whole: of the key alone, some servers do not tell the lease
	return clientv3.OpTxn([]clientv3.Cmp{stands, alone}, []clientv3.Op{put}, []clientv3.Op{s.where, own})
}

// adopt takes for e what an earlier copy of the same request has put.
func (b *backend) adopt(ctx context.Context, e *entry, own *mvccpb.KeyValue) (before rival, err error) {
	if id, _, _ := parseRecord(string(own.Value)); id != e.id || own.Lease != int64(e.session.id) {
		return nobody, e.foreign()
	}
	b.created(e, own.CreateRevision)
	return b.look(ctx, e)
}

// await returns when before is gone, or may be, and who is before e then. A watch begins with
// what is deleted from now on, and the queue is read again once it is in place: see guard. One
// that is left from another wait, and has told nothing that came after e was put, is still to
// tell the end of before, who was there then.
func (b *backend) await(ctx context.Context, e *entry, before rival) (rival, error) {
	const patience = 500 * time.Millisecond // if there can be no watch
	s := e.session
	w := s.sight.over(ctx, e.queue, before.name, e.token)
	for {
		select {
		case resp, ok := <-w.told:
			if !ok || resp.Err() != nil {
				if !s.sight.ended(w) || ctx.Err() != nil {
					if err := s.sleep(ctx, patience); err != nil {
						return nobody, err
					}
				}
				return b.look(ctx, e)
			}
			s.sight.heard(w, resp)
			if !resp.Created && !tellsOf(resp.Events, before) {
				continue
			}
			now, err := b.look(ctx, e)
			if err != nil || now != before {
				s.sight.park(e.queue, w)
				return now, err
			}
		case <-s.ended:
			w.done()
			return nobody, errSessionEnded
		case <-ctx.Done():
			w.done()
			return nobody, ctx.Err() // not marked: it is in the queue
		}
	}
}

// tellsOf says whether r was deleted, and not only one that had its name before.
func tellsOf(events []*clientv3.Event, r rival) bool {
	for _, ev := range events {
		if ev.Kv.ModRevision > r.token {
			return true
		}
	}
	return false
}

// look reads who is before e, and that e itself is there, with a linearizable read: so every
// grant after a wait is proved anew. It tries again while the server does not answer, as long
// as the session lasts: the engine would have to begin at the end of the queue.
func (b *backend) look(ctx context.Context, e *entry) (rival, error) {
	ops := []clientv3.Op{
		last(e.queue, e.mode, clientv3.WithMaxCreateRev(e.token-1)),
		clientv3.OpGet(e.name), // whole, as in creation
	}
	for {
		resp, err := b.do(ctx, clientv3.OpTxn(nil, ops, nil))
		if err == nil {
			return b.saw(e, resp.Txn().Responses)
		}
		if _, permanent := remedy(err); permanent {
			return nobody, errors.New(err.Error()) // not marked: it is in the queue
		}
		if err := e.session.sleep(ctx, 100*time.Millisecond); err != nil {
			return nobody, err
		}
	}
}

func (b *backend) saw(e *entry, responses []*etcdserverpb.ResponseOp) (rival, error) {
	own := firstKey(responses[1])
	switch {
	case own == nil, own.CreateRevision != e.token:
		b.released(e)
		return nobody, errRemoved
	case own.Lease != int64(e.session.id):
		return nobody, e.foreign()
	}
	return rivalIn(responses[0]), nil
}

// sleep sleeps for d. It returns an error if it should not go on then, for one whose entry is
// in the queue.
func (s *session) sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-s.ended:
		return errSessionEnded
	case <-ctx.Done():
		return ctx.Err() // not marked
	}
}

// foreign says that what is at the server by e's name is not as it was put. It is not marked:
// the engine is to abandon it.
func (e *entry) foreign() error {
	return fmt.Errorf("what etcd has as %q is not this session's", e.name)
}

// Abandon implements driver.Driver.
func (b *backend) Abandon(ctx context.Context, r *driver.Request) error {
	e, doubt, there := b.abandon(r.ID)
	var err error
	switch {
	case e == nil:
		return nil
	case doubt:
		err = b.shutOut(ctx, e)
	case there:
		_, err = b.delete(ctx, e)
	}
	if err == nil {
		b.settled(e)
	}
	return err
}

// abandon notes that nothing may be sent any more for a request. doubt says that something of
// it may be under way; if not, there says whether its entry is at the server.
func (b *backend) abandon(id string) (e *entry, doubt, there bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e = b.entries[id]
	if e == nil {
		return nil, false, false
	}
	e.abandoned = true
	doubt = e.underWay || e.doubt || e.shutting
	e.shutting = doubt
	return e, doubt, e.there
}

// shutOut deletes what there may be by e's name, and puts the barrier before what may be under
// way of it. It names the barrier itself: a copy of it that comes late must not delete what
// then has the name.
func (b *backend) shutOut(ctx context.Context, e *entry) error {
	s := e.session
	put, remove := clientv3.OpPut(s.bar, "", clientv3.WithLease(s.id)), clientv3.OpDelete(e.name)
	for {
		stands := clientv3.Compare(clientv3.ModRevision(s.bar), "=", s.barrierNow())
		resp, err := b.do(ctx, clientv3.OpTxn([]clientv3.Cmp{stands}, []clientv3.Op{remove, put}, []clientv3.Op{s.where}))
		switch {
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			return nil // nor can anything be put on it any more
		case errors.Is(err, rpctypes.ErrNoSpace):
			// A server that is full puts nothing, neither the barrier nor what is under way, until
			// its operator has told it to.
			_, err = b.delete(ctx, e)
			return err
		case err != nil:
			return err
		case resp.Txn().Succeeded:
			s.raise(resp.Txn().Header.Revision)
			return nil
		}
		s.raise(firstKey(resp.Txn().Responses[0]).GetModRevision())
	}
}

// last returns the operation that reads the newest of those who must have gone before a
// request of that mode.
func last(queue string, mode lock.Mode, opts ...clientv3.OpOption) clientv3.Op {
	opts = append(opts, clientv3.WithKeysOnly())
	return clientv3.OpGet(rivals(queue, mode), append(opts, clientv3.WithLastCreate()...)...) // which takes the name as a prefix
}

func rivalIn(r *etcdserverpb.ResponseOp) rival {
	kv := firstKey(r)
	return rival{string(kv.GetKey()), kv.GetCreateRevision()}
}

func firstKey(r *etcdserverpb.ResponseOp) *mvccpb.KeyValue {
	if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
		return kvs[0]
	}
	return nil
}
