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

	limit, cancel := context.WithTimeout(background, closeLimit)
	defer cancel()
	news, told := e.teller()
	idle := e.closeAll(news)
	select {
	case <-idle:
	case <-time.After(closeLimit * 2 / 3):
	}
	e.die()
	select {
	case <-e.stopped:
	case <-time.After(closeLimit / 16): // the keeper is in an observer that blocks, or that called Close
	}
	e.giveUpAll(news)
	close(news)
	err := e.closeDriver(limit)
	close(e.closed)
	select {
	case <-told:
	case <-limit.Done():
	}
	return err
}

// closeDriver closes the driver, and waits for it until limit ends.
func (e *engine) closeDriver(limit context.Context) error {
	ctx, cancel := context.WithTimeout(background, closeLimit/4)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- e.d.Close(ctx) }()
	select {
	case err := <-done:
		return err
	case <-limit.Done():
		return nil
	}
}

// teller tells what it is sent, in order, and closes told when there is no more of it. It
// is a goroutine of its own, as the observer may call Close, which waits for this Close.
func (e *engine) teller() (chan<- news, <-chan struct{}) {
	sent, told := make(chan news, 2), make(chan struct{})
	go func() {
		defer close(told)
		for n := range sent {
			e.tell(n)
		}
	}()
	return sent, told
}

// closeAll loses all handles and has everything at the server freed. It returns a
// channel that is closed when that is done.
func (e *engine) closeAll(toTell chan<- news) <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
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
		h.startRelease(background, now, e.settle)
	}
	e.hastenAll(now)
	idle := make(chan struct{})
	e.idle = idle
	e.checkIdle()
	toTell <- e.takeNews() // there is room
	return idle
}

// giveUpAll ends what could not be settled, so that nobody waits for it any more.
func (e *engine) giveUpAll(toTell chan<- news) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := Now()
	for s := range e.unsettled {
		e.conclude(s, now, false)
	}
	for _, h := range e.held {
		h.forget(e)
	}
	toTell <- e.takeNews()
}
