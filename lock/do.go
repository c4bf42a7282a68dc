package lock

import (
	"context"
	"errors"
)

// Context returns a context that is cancelled, with h.Err() as cause, when h is
// lost. It also ends with parent. Call cancel when the work is over: a release
// of h does not end the context.
func Context(parent context.Context, h Handle) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	select {
	case <-h.Lost(): // a caller that is late must not see a live context for a moment
		cancel(h.Err())
		return ctx, func() {}
	default:
	}
	go func() {
		select {
		case <-h.Lost():
			cancel(h.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Do runs fn while it holds key. It acquires as [Locker.Acquire] does, bounded by
// ctx and [Wait], gives fn a context that ends when the lock is lost, and releases
// when fn has returned or panicked.
//
// If nothing could be acquired, fn is not called and the error is Acquire's. If
// the lock was lost on the way, the error joins fn's with one that matches
// [ErrLost]: what fn did last may not have been done alone. A release whose
// outcome is not known is no error of the work: it goes on in the background, and
// an [Event] tells.
func Do(ctx context.Context, l Locker, key string, fn func(context.Context, Handle) error, opts ...Option) (err error) {
	h, err := l.Acquire(ctx, key, opts...)
	if err != nil {
		return err
	}
	work, cancel := Context(ctx, h)
	defer func() {
		cancel()
		if lost := finish(ctx, h); lost != nil {
			err = errors.Join(err, lost)
		}
	}()
	return fn(work, h)
}

// finish releases h and returns an error if it was lost, before or by now.
func finish(ctx context.Context, h Handle) error {
	err := h.Release(context.WithoutCancel(ctx))
	if errors.Is(err, ErrLost) {
		return err
	}
	return nil
}
