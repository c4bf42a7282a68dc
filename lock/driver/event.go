package driver

import (
	"context"

	"github.com/holdfast-go/holdfast/lock"
)

// post is an event on its way to the observer.
type post struct {
	ctx context.Context
	ev  lock.Event
}

// background is the context of events that no call caused.
var background = context.Background()

// post notes an event, to be told when the engine is unlocked.
func (e *engine) post(ctx context.Context, ev lock.Event) {
	if e.cfg.Observe == nil {
		return
	}
	e.outbox = append(e.outbox, post{ctx, ev})
}

// unlock unlocks the engine and then tells the observer what was noted.
func (e *engine) unlock() {
	posts := e.outbox
	e.outbox = nil
	e.mu.Unlock()
	for _, p := range posts {
		e.cfg.Observe(p.ctx, p.ev)
	}
}
