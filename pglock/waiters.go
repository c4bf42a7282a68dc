package pglock

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// waiters are the sessions that wait for locks: at the server, in its queue, each for one
// at a time and holding nothing else. A lock that one of them has waited for stays there
// until it is released. Their number is bounded; who finds none free asks again and again
// on the shared session instead.
//
// The fields are guarded by mu.
type waiters struct {
	b  *backend
	mu sync.Mutex

	free  []*session // the one used last is the last
	count int        // of all, those that are being opened included
}

// untried is how often in a row a lock that was taken is waited for without a try: it is
// likely to be taken again, and if it is not, a wait is over at once.
const untried = 8

// contended notes that s waits for a lock that was taken.
func (w *waiters) contended(s *session, number int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	s.last, s.again = number, untried
}

// again returns a session that has waited for the same lock before, if it is worth while
// to do so at once; or nil.
func (w *waiters) again(number int64) *session {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.free, func(s *session) bool { return s.last == number && s.again > 0 })
	if i < 0 {
		return nil
	}
	s := w.free[i]
	w.free = slices.Delete(w.free, i, i+1)
	s.again--
	return s
}

// get returns a session to wait on; nil: there is none now.
func (w *waiters) get(ctx context.Context) (*session, error) {
	w.mu.Lock()
	if n := len(w.free); n > 0 {
		s := w.free[n-1]
		w.free = w.free[:n-1]
		w.mu.Unlock()
		return s, nil
	}
	if w.count >= w.b.cfg.WaitConns {
		w.mu.Unlock()
		return nil, nil
	}
	w.count++
	w.mu.Unlock()
	w.b.mu.Lock()
	o := w.b.open(true)
	w.b.mu.Unlock()
	select {
	case <-o.done:
		return o.s, o.err
	case <-ctx.Done():
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if o.taken { // it is open at this moment
		return o.s, nil
	}
	o.left = true
	return nil, ctx.Err()
}

// opened takes a session that nobody waits for any more.
func (w *waiters) opened(o *opening) {
	w.mu.Lock()
	o.taken = !o.left
	w.mu.Unlock()
	if !o.taken {
		w.put(o.s)
	}
}

// put gives a session back that holds nothing.
func (w *waiters) put(s *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.over() != nil { // looked at with w locked: if it ends later, remove finds it
		return
	}
	s.used = driver.Now()
	w.free = append(w.free, s)
}

// remove takes s out, which is at its end, if it is there.
func (w *waiters) remove(s *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count--
	if i := slices.Index(w.free, s); i >= 0 {
		w.free = slices.Delete(w.free, i, i+1)
	}
}

var errIdle = errors.New("the session had nothing to wait for")

// retire takes s out of those that are free, for good, if it has been free for longer than
// a TTL.
func (w *waiters) retire(s *session) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(w.free, s)
	if i < 0 || driver.Now().Sub(s.used) < w.b.cfg.TTL {
		return false
	}
	w.free = slices.Delete(w.free, i, i+1)
	s.close(errIdle)
	return true
}

// failed notes that a session could not be opened.
func (w *waiters) failed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count--
}
