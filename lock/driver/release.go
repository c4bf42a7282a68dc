package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-go/holdfast/lock"
)

func (h *handle) Release(ctx context.Context) error {
	e := h.e
	e.mu.Lock()
	now := Now()
	h.judge(now)
	here := false // the first try is made by this goroutine
	h.startRelease(ctx, now, func(s *settlement, now Stamp) {
		if !e.inline(ctx) || !h.waitForRelease() {
			e.settleNow(s, now)
			return
		}
		e.addSettlement(s, now)
		here = e.startTry(s, now)
	})
	s, wait, wasLost := h.release, h.waitForRelease(), h.state == lost
	e.unlock()

	if !wait {
		return h.Err()
	}
	if here {
		e.runTry(s)
	}
	err, known := s.await(ctx, now)
	switch {
	case wasLost:
		return h.Err()
	case known && err == nil:
		return nil
	case known && errors.Is(err, lock.ErrLost):
		return fmt.Errorf("holdfast: release %q: %w: the server did not have it any more", brief(h.key), lock.ErrLost)
	default:
		return fmt.Errorf("holdfast: release %q: it goes on in the background: %w", brief(h.key), unavailable(s.why(e, err)))
	}
}

// startRelease begins to free h at the server, once, by the given way of settling. A
// lease of its own that was lost by the deadline may live on at the server, where a
// renewal may have arrived whose answer did not; so that is freed too, for others not
// to wait.
func (h *handle) startRelease(ctx context.Context, now Stamp, settle func(*settlement, Stamp)) {
	if h.release != nil || h.gone {
		return
	}
	e := h.e
	h.release = h.releasing()
	h.release.caller = ctx
	if h.state == held {
		h.state = released
	}
	if h.limit != nil {
		e.alarms.unset(h.limit)
		h.limit = nil
	}
	if !h.lease.shared {
		h.lease.resting = true
	}
	e.gates.untake(h.pass, now)
	settle(h.release, now)
}

// releasing returns the settlement that frees h at the server: behind the renewal that
// is under way, if there is one.
func (h *handle) releasing() *settlement {
	e, wasHeld, deadline := h.e, h.state == held, h.lease.deadline
	var flight *flight
	if !h.lease.shared {
		flight = h.lease.flight
	}
	return &settlement{
		// A release that could not be sent until the lease had run out comes to nothing
		// that was not wanted: the holder had the lock until it released it.
		lapsed: func(now Stamp) bool { return wasHeld && now >= deadline },
		attempt: func(ctx context.Context) error {
			if err := flight.wait(ctx); err != nil {
				return err
			}
			return h.grant.Release(ctx)
		},
		settled: func(now Stamp, err error) {
			if errors.Is(err, lock.ErrLost) && !wasHeld {
				err = nil
			}
			h.tellRelease(now, err)
			h.forget(e)
		},
		gaveUp: func(now Stamp, err error) {
			h.tellRelease(now, unavailable(err))
			if h.lease.shared { // a ghost that is renewed would keep everybody out for ever
				e.giveUpLease(h.lease, now, errGhost)
			}
			h.forget(e)
		},
	}
}

func (h *handle) tellRelease(now Stamp, err error) {
	h.e.post(h.release.caller, lock.Event{
		Kind: lock.Released, Key: h.key, Token: h.token, Took: now.Sub(h.release.began), Err: err,
	})
}

// waitForRelease says whether Release has an outcome to wait for: not after a loss
// that left nothing at the server, or nothing that could be proved.
func (h *handle) waitForRelease() bool {
	return h.state == released || h.e.held[h.id] == h
}
