package driver

import (
	"context"
	"errors"
	"sync"
	"time"
)

var errLimit = errors.New("no answer in time")

// withLimit bounds a call whose context has no deadline.
func withLimit(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, limit, errLimit)
}

// bounded is a context with a limit for a call that the caller makes itself. Mostly the
// server answers before anybody waits for the context's end; only who does makes it cost a
// timer.
type bounded struct {
	parent context.Context
	until  time.Time

	mu     sync.Mutex
	over   bool
	waited context.Context // what is waited for: nil as long as nobody does
	end    context.CancelFunc
}

func withBound(parent context.Context, limit time.Duration) *bounded {
	return &bounded{parent: parent, until: time.Now().Add(limit)}
}

// cancel ends the context.
func (b *bounded) cancel() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if b.end != nil {
		b.end()
	}
}

// Deadline implements context.Context.
func (b *bounded) Deadline() (time.Time, bool) { return b.until, true }

// Done implements context.Context.
func (b *bounded) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waited == nil {
		b.waited, b.end = context.WithDeadlineCause(b.parent, b.until, errLimit)
		if b.over {
			b.end()
		}
	}
	return b.waited.Done()
}

// Err implements context.Context.
func (b *bounded) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.waited != nil:
		return b.waited.Err()
	case b.over:
		return context.Canceled
	case b.parent.Err() != nil:
		return b.parent.Err()
	case !time.Now().Before(b.until):
		return context.DeadlineExceeded
	}
	return nil
}

// Value implements context.Context. It leads package context to what is waited for, so that
// contexts made of this one are ended by that, and need no goroutine to watch it.
func (b *bounded) Value(key any) any {
	b.mu.Lock()
	from := b.waited
	b.mu.Unlock()
	if from == nil {
		from = b.parent
	}
	return from.Value(key)
}
