package etcdlock

import (
	"context"
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// sight is the watches of a session: of those who wait for another entry to go, and of the
// guard. It notices if they are deaf: if they hang on a connection that is dead while others
// live, which the client may not notice for minutes.
type sight struct {
	s    *session
	life context.Context // of the session

	// Guarded by backend.mu.
	now      context.Context // of the watches there are: it ends if they are to begin anew
	restart  context.CancelFunc
	streams  int          // that there have been
	began    driver.Stamp // when the last of them did
	anchored bool
	parked   map[string]*watch // by queue: of waits that are over
	open     int               // watches
	silent   bool              // they were asked for a sign of life, and have given none since
	asked    driver.Stamp      // when
}

// watch is one of them.
type watch struct {
	key    string
	ctx    context.Context // ends with it
	told   clientv3.WatchChan
	placed bool        // the server has it
	heard  int64       // the revision up to which it has told what was deleted
	done   func()      // ends it
	timer  *time.Timer // of one that was parked
}

func newSight(life context.Context, s *session) sight {
	g := sight{s: s, life: life, parked: make(map[string]*watch)}
	g.renew()
	return g
}

// renew has the next watches begin on a stream of their own: a client puts those with the same
// metadata on one. What ends another's stream must not end it, its signs of life are for
// nobody else, and one that is deaf takes no more. A member that is cut off from the others
// ends it, and is not mute.
//
// Those there are begin anew as well: of the streams of a session, one is asked for signs of
// life.
func (g *sight) renew() {
	if g.restart != nil {
		g.leave()
	}
	g.streams++
	g.began = driver.Now()
	g.now, g.restart = context.WithCancel(onStream(g.life, g.stream()))
}

// stream is the name of the stream that the watches are on.
func (g *sight) stream() string { return g.s.name + "." + strconv.Itoa(g.streams) }

// leave ends the watches there are. backend.mu is locked, or nobody else has g yet.
func (g *sight) leave() {
	g.restart()
	if g.anchored {
		g.s.b.left = append(g.s.b.left, g.stream())
	}
}

// watch watches what is deleted of a key, until ctx ends, done is called, or all begin anew. It
// returns when the watch is in place, as the first response says, or cannot be.
func (g *sight) watch(ctx context.Context, key string, opts ...clientv3.OpOption) *watch {
	w, begin := g.prepare(key, opts)
	stop := context.AfterFunc(ctx, w.done)
	begin()
	done := w.done
	w.done = func() { stop(); done() }
	return w
}

// prepare returns a watch, and what begins it.
func (g *sight) prepare(key string, opts []clientv3.OpOption) (w *watch, begin func()) {
	b := g.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	own, cancel := context.WithCancel(g.now)
	g.open++
	if !g.anchored {
		// It has a goroutine of its own, as the client wants its channels read.
		g.anchored = b.run(g.anchor)
	}
	closed := sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		g.open--
	})
	opts = append(opts, clientv3.WithFilterPut(), clientv3.WithCreatedNotify())
	w = &watch{key: key, ctx: own, done: func() { cancel(); closed() }}
	return w, func() { w.told = b.client.Watch(own, key, opts...) }
}

// over returns a watch over the key of a rival in a queue, who was there at a revision: that of
// the last wait there, if it was for the same, and has told nothing later yet. Where some Lockers
// take turns, each waits for the same one every time.
func (g *sight) over(ctx context.Context, queue, key string, there int64) *watch {
	b := g.s.b
	b.mu.Lock()
	w := g.parked[queue]
	delete(g.parked, queue)
	fits := w != nil && w.key == key && w.heard <= there
	b.mu.Unlock()
	if w != nil && w.timer.Stop() {
		if fits && w.ctx.Err() == nil {
			return w
		}
		w.done()
	}
	w, begin := g.prepare(key, nil)
	stop := context.AfterFunc(ctx, w.done)
	mute := time.AfterFunc(b.limit, w.done) // a member that takes it and never places it
	begin()
	mute.Stop()
	stop()
	return w
}

// park keeps a watch for the next wait in the queue, which may come soon. It has a timer, as
// what it tells meanwhile is kept by the client.
func (g *sight) park(queue string, w *watch) {
	b := g.s.b
	b.mu.Lock()
	if g.parked[queue] != nil { // another's, of a lock that is shared
		b.mu.Unlock()
		w.done()
		return
	}
	defer b.mu.Unlock()
	g.parked[queue] = w
	w.timer = time.AfterFunc(time.Second, func() {
		b.mu.Lock()
		if g.parked[queue] == w {
			delete(g.parked, queue)
		}
		b.mu.Unlock()
		w.done()
	})
}

// anchor keeps a watch on a key that nobody deletes, the barrier: a client closes a stream with
// its last watch, and one that waits again and again would open it as often.
func (g *sight) anchor() {
	for g.life.Err() == nil {
		w := g.watch(g.life, g.s.bar)
		for resp := range w.told {
			if resp.Err() == nil {
				g.heard(w, resp)
			}
		}
		g.ended(w)
		_ = sleep(g.life, time.Second)
	}
}

// heard notes a sign of life.
func (g *sight) heard(w *watch, resp clientv3.WatchResponse) {
	b := g.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	g.silent = false
	w.placed = w.placed || resp.Created
	if resp.Created && len(b.left) > 0 {
		b.run(func() { b.sweep(b.life) })
	}
	w.heard = max(w.heard, resp.Header.Revision)
}

// ended notes that a watch is over, and says whether another can begin at once.
//
// A server takes no new watch on a stream whose login has ended meanwhile, or is older than the
// last change of its users, and the client does not log in again for one. So if a watch has come
// to nothing, all begin anew, on a stream with a login of its own.
func (g *sight) ended(w *watch) (again bool) {
	defer w.done()
	b := g.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case g.life.Err() != nil:
		return false
	case w.timer != nil, w.ctx.Err() != nil: // while it was parked; as all begin anew
		return true
	case w.placed, driver.Now().Sub(g.began) < time.Second: // it may be something else
		return false
	}
	g.renew()
	return true
}

// check asks for a sign of life, and ends the watches if there has been none since it was
// last asked for. Those whom they were for begin others. It is called with every renewal.
func (g *sight) check() {
	b := g.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	now := driver.Now()
	switch {
	case g.open == 0:
		g.silent = false
		return
	case g.silent && now.Sub(g.asked) < g.s.ttl/4: // a renewal that failed was tried again
		return
	case g.silent:
		g.renew()
	}
	g.silent, g.asked = true, now
	select {
	case g.s.guard.ask <- struct{}{}:
	default:
	}
}

// requestProgress asks for a sign of life. If it does not come through, the next check ends
// the watches.
func (g *sight) requestProgress(ctx context.Context) {
	b := g.s.b
	b.mu.Lock()
	now := g.now
	b.mu.Unlock()
	if now.Err() != nil { // it would be of a stream without a watch
		return
	}
	bounded, cancel := context.WithTimeout(now, b.limit)
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	_ = b.client.RequestProgress(bounded)
}
