package otherprocess

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// handle is a handle of the process's Locker.
type handle struct {
	caller   *caller
	number   uint64
	key      string
	token    lock.Token
	hasToken bool
	fate     *fate
}

// Key implements [lock.Handle].
func (h *handle) Key() string { return h.key }

// Token implements [lock.Handle].
func (h *handle) Token() (lock.Token, bool) { return h.token, h.hasToken }

// Lost implements [lock.Handle].
func (h *handle) Lost() <-chan struct{} { return h.fate.lost }

// Err implements [lock.Handle].
func (h *handle) Err() error {
	a, err := h.ask(context.Background(), opErr)
	if err != nil {
		return h.last()
	}
	return a.State.unpack(nil)
}

// Valid implements [lock.Handle]. It counts from when it was called.
func (h *handle) Valid() time.Duration {
	began := time.Now()
	a, err := h.ask(context.Background(), opValid)
	if err != nil {
		return 0
	}
	return max(0, a.Valid-time.Since(began))
}

// Release implements [lock.Handle].
func (h *handle) Release(ctx context.Context) error {
	a, err := h.ask(ctx, opRelease)
	switch {
	case err == nil:
		return a.Err.unpackFor(ctx)
	case !errors.Is(err, errEnded):
		return fmt.Errorf("holdfast: release %q: %w: %w", h.key, lock.ErrUnavailable, err)
	case errors.Is(h.fate.last(), lock.ErrReleased):
		return nil
	}
	return h.last()
}

func (h *handle) ask(ctx context.Context, o op) (answer, error) {
	return h.caller.call(ctx, request{Op: o, Handle: h.number})
}

// last is Err when there is nobody to ask any more.
func (h *handle) last() error {
	return fmt.Errorf("holdfast: lock %q, whose process has ended: %w", h.key, h.fate.last())
}
