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
	e.news.posts = append(e.news.posts, post{ctx, ev})
}

// news is what is to be told when the engine is unlocked.
type news struct {
	posts  []post     // to the observer
	behind []*entrant // that the key is taken for which they wait
}

func (e *engine) takeNews() news {
	n := e.news
	e.news = news{}
	return n
}

func (e *engine) tell(n news) {
	for _, p := range n.posts {
		e.cfg.Observe(p.ctx, p.ev)
	}
	for _, en := range n.behind {
		en.waiting()
	}
}

// unlock unlocks the engine and then tells what there is to be told.
func (e *engine) unlock() {
	n := e.takeNews()
	e.mu.Unlock()
	e.tell(n)
}
