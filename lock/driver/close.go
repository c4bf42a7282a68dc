package driver

import (
	"context"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Close first ends all waits and loses all handles, then gives the server a bounded
// time to be told of it: grants are released, shared leases ended, unknown outcomes
// abandoned. What it cannot be told it finds out by itself when the leases lapse,
// for nothing is renewed any more. The driver is closed last.
func (e *engine) Close() error {
	e.mu.Lock()
	if e.isClosed {
		e.mu.Unlock()
		<-e.closed
		return nil
	}
	e.isClosed = true
	e.end()
	e.mu.Unlock()

	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	idle := e.closeAll()
	select {
	case <-idle:
	case <-time.After(closeLimit * 2 / 3):
	}
	e.die()
	select {
	case <-e.stopped:
	case <-time.After(closeLimit / 16): // the keeper is in an observer that blocks, or that called Close
	}
	e.giveUpAll()

	ctx, cancel := context.WithTimeout(context.Background(), closeLimit/4)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.d.Close(ctx) }()
	var err error
	select {
	case err = <-done:
	case <-limit.C:
	}
	close(e.closed)
	return err
}

// closeAll loses all handles and has everything at the server freed. It returns a
// channel that is closed when that is done.
func (e *engine) closeAll() <-chan struct{} {
	e.mu.Lock()
	defer e.unlock()
	now := Now()
	for _, at := range e.pending {
		at.a.cancel()
	}
	for _, l := range e.leases {
		if l.shared {
			e.endLease(l, now, lock.ErrClosed)
		}
	}
	for _, h := range e.held {
		h.lose(e, now, lock.ErrClosed)
		h.startRelease(now, e.settle)
	}
	e.hastenAll()
	idle := make(chan struct{})
	e.idle = idle
	e.checkIdle()
	return idle
}

// giveUpAll ends what could not be settled, so that nobody waits for it any more.
func (e *engine) giveUpAll() {
	e.mu.Lock()
	defer e.unlock()
	now := Now()
	for s := range e.unsettled {
		e.conclude(s, now, false)
	}
	for _, h := range e.held {
		h.forget(e)
	}
}
