package etcdlock

import (
	"context"
	"sync"
	"time"
)

// limits bounds requests. Those that begin at about the same time share a context and its timer,
// as one for each, which may wake a thread, costs a twentieth of what a lock does.
//
// It does not end with the context of the caller, but for its deadline: the engine leaves a
// request behind whose caller has given up, and an answer that comes a little later is better
// than none. What was sent is carried out all the same, and has to be abandoned if nobody knows.
type limits struct {
	life context.Context // of the backend
	most time.Duration   // that a request may take; each has three quarters of it at least

	mu      sync.Mutex
	current untold             // of requests that begin now
	end     context.CancelFunc // never called: its timer ends it soon enough
	renewAt time.Time
}

// bound returns the context of a request that begins now, and what frees it.
func (l *limits) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	shared := l.next()
	end, _ := shared.Context.Deadline()
	deadline, has := ctx.Deadline()
	if !has || deadline.After(end) {
		return shared, func() {}
	}
	bounded, cancel := context.WithDeadline(shared, deadline)
	return untold{bounded}, cancel
}

func (l *limits) next() untold {
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.current.Context == nil || now.After(l.renewAt) {
		l.current.Context, l.end = context.WithTimeout(l.life, l.most) // those that began with the last one keep it
		l.renewAt = now.Add(l.most / 4)
	}
	return l.current
}

// untold is a context whose deadline the server is not told: a deadline of its own for each
// request costs both sides a tenth of what a lock does.
type untold struct{ context.Context }

// Deadline implements context.Context.
func (untold) Deadline() (time.Time, bool) { return time.Time{}, false }
