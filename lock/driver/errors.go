package driver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// outcome is what an error of Driver.Acquire says.
type outcome uint8

const (
	outcomeUnknown outcome = iota // it may hold the key, now or later
	outcomeHeld
	outcomeAgain
	outcomeRefused
	outcomePermanent
	outcomeOver // the wait ended, and what was sent is being settled
)

// errOver is the engine's own: see outcomeOver.
var errOver = errors.New("the wait is over")

// errPanic is of a call that has not returned.
var errPanic = errors.New("the driver panicked")

func classify(err error) outcome {
	var m *marked
	switch {
	case err == errOver: //nolint:errorlint // identity: nobody else returns it
		return outcomeOver
	case errors.Is(err, lock.ErrHeld):
		return outcomeHeld
	case errors.Is(err, ErrAgain):
		return outcomeAgain
	case errors.As(err, &m) && !m.permanent:
		return outcomeRefused
	case IsPermanent(err):
		return outcomePermanent
	default:
		return outcomeUnknown
	}
}

// LeavesNothing says whether an error of [Driver.Acquire], or of a question of its own that a
// driver has marked, proves that it left nothing at the server.
func LeavesNothing(err error) bool {
	k := classify(err)
	return k == outcomeHeld || k == outcomeRefused || k == outcomePermanent
}

// IsPermanent says whether err is marked by [Permanent].
func IsPermanent(err error) bool {
	var m *marked
	return errors.As(err, &m) && m.permanent
}

// unavailable says that the server could not be asked, and why.
func unavailable(err error) error {
	if err == nil {
		return lock.ErrUnavailable
	}
	if errors.Is(err, lock.ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
}

// ownLimit hides the end of a context that is not the caller's, but that of a wait, of an
// attempt or of a connection: callers would take it for the end of theirs.
func ownLimit(err error) error {
	if isContextError(err) {
		return errors.New(err.Error())
	}
	return err
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// ended says whether ctx is over. The timer of a connection with the same deadline may
// be a moment ahead of the context's: what it reports then is the context's end.
func ended(ctx context.Context) bool {
	const moment = 5 * time.Millisecond // or the wall clock was stepped, and the context is right
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		select {
		case <-ctx.Done():
		case <-time.After(moment):
		}
	}
	return ctx.Err() != nil
}

// ctxError returns an error that matches both what ended ctx and why.
func ctxError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// brief shortens a key for an error.
func brief(key string) string {
	const enough = 128
	if len(key) <= enough {
		return key
	}
	return key[:enough] + "…"
}
