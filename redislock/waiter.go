package redislock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// waiter is a request of this Locker's that stands in the queue, or may.
type waiter struct {
	entry string // that stands there
	place string // by which the queue is ordered; "" until the server has told it

	headStart time.Duration
	missed    bool // it was called, and has not come in time

	called chan time.Duration // after how long to ask
	asks   bool               // a question is under way, or has brought no answer
}

// entry is what stands in the queue for a request: the Locker to be called, and its ID.
func (w *wakeups) entry(id string) string { return w.locker + " " + id }

// enter notes that a request is about to ask for a place in the queue.
func (w *wakeups) enter(id string) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.waiters[id]
	if one == nil {
		one = &waiter{entry: w.entry(id), headStart: w.headStart, called: make(chan time.Duration, 1)}
		w.waiters[id] = one
	}
	one.asks = true
	return one
}

// answered notes what came of that. Of an unknown outcome nothing is noted: the request
// is abandoned then.
func (w *wakeups) answered(id string, b busy, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.waiters[id]
	switch {
	case one == nil:
	case b.yes:
		one.asks, one.place = false, b.place
		if b.missed {
			one.missed = true
			one.headStart = min(2*one.headStart, mostHeadStart)
			w.headStart = max(w.headStart, one.headStart)
		}
	case err == nil:
		delete(w.waiters, id)
	case driver.LeavesNothing(err):
		if one.asks = false; one.place == "" {
			delete(w.waiters, id) // otherwise it is abandoned
		}
	}
}

// patience is how long to sleep without being called. Who was called and has not come may
// not hear: it asks as often as it takes to find the lock kept for it.
func (one *waiter) patience(b busy) time.Duration {
	most := time.Second
	if one.missed {
		most = one.headStart / 2
	}
	if b.left < 0 || b.left > most {
		return most - rand.N(most/10)
	}
	return b.left + time.Millisecond + rand.N(5*time.Millisecond)
}

// underWay says whether a request may still be on its way to the server.
func (w *wakeups) underWay(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	one := w.waiters[id]
	return one == nil || one.asks
}

// left forgets a request that was abandoned.
func (w *wakeups) left(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiters, id)
}

// call has a waiter ask after so long.
func (w *wakeups) call(id string, after time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if one := w.waiters[id]; one != nil {
		one.say(after)
	}
}

// callAll has all ask: what was said while nobody heard is lost.
func (w *wakeups) callAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, one := range w.waiters {
		one.say(0)
	}
}

// say puts after into called, in place of what may not have been heard. It is the only
// one that does; the wakeups are locked.
func (one *waiter) say(after time.Duration) {
	select {
	case unheard := <-one.called:
		if unheard == 0 {
			after = 0
		}
	default:
	}
	one.called <- after
}

// sleep returns after d, or sooner or later if it is told so. Its error is that of ctx.
func (one *waiter) sleep(ctx context.Context, d time.Duration) error {
	end := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case after := <-one.called:
			if after == 0 {
				return nil
			}
			timer.Reset(min(after, time.Until(end)))
		}
	}
}
