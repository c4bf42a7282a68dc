package zklock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"
)

var errDeleted = errors.New("its node was deleted")

// watches are the nodes that a session watches, each once, however many wait for it and
// give up: package zk cannot take a watch back before it fires.
type watches struct {
	s *session

	mu      sync.Mutex
	m       map[string]<-chan zk.Event // by path: of those in front of who waits
	held    map[string]holding         // by path: the nodes of what is granted
	tending bool
}

// holding is a node that a grant needs.
type holding struct {
	id      string // of the request
	free    func() // takes its path off the session's count
	watched bool   // the server has a watch on it
}

func newWatches(s *session) *watches {
	return &watches{s: s, m: make(map[string]<-chan zk.Event), held: make(map[string]holding)}
}

// arm sets a watch on a node, unless there is one, and returns its channel, which is closed
// when it has fired: call fired then. If there is no such node the error is zk.ErrNoNode.
func (ws *watches) arm(ctx context.Context, path string) (<-chan zk.Event, error) {
	ws.mu.Lock()
	events, found := ws.m[path]
	ws.mu.Unlock()
	if found {
		return events, nil
	}
	return ask(ctx, ws.s, func() (<-chan zk.Event, error) {
		// GetW, as ExistsW would watch for a node that never comes if this one has gone.
		_, _, events, err := ws.s.conn.GetW(path)
		if err == nil { // for others, too, if this call was left behind
			ws.mu.Lock()
			defer ws.mu.Unlock()
			ws.m[path] = events
		}
		return events, err
	})
}

// fired forgets a watch that is over.
func (ws *watches) fired(path string, events <-chan zk.Event) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if ws.m[path] == events {
		delete(ws.m, path)
	}
}

// told is called by package zk when something has happened to a node that is watched.
func (ws *watches) told(path string, deleted bool) {
	ws.mu.Lock()
	delete(ws.m, path) // for whoever has given up, and does not call fired
	h, held := ws.held[path]
	switch {
	case !held:
	case deleted:
		delete(ws.held, path)
	default: // the watch is over, and the node is not
		h.watched = false
		ws.held[path] = h
	}
	ws.mu.Unlock()
	if held && deleted {
		ws.lost(h)
	}
}

// hold has the deletion of a node told to the engine, which takes it for the loss of the
// grant for the request of that ID, and does not release it any more: so free is called.
func (ws *watches) hold(path, id string, free func()) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.held[path] = holding{id: id, free: free}
}

// lost tells that the node of a grant is gone.
func (ws *watches) lost(h holding) {
	h.free()
	ws.s.b.host.GrantLost(h.id, errDeleted)
}

// release forgets a node that is about to be removed.
func (ws *watches) release(path string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	delete(ws.held, path)
}

// tend has those nodes watched that are held for longer than a heartbeat: for a lock that is
// held for a moment a watch would cost more than the lock. It looks after them in the
// background, one after the other, for they may be many, and a heartbeat does not wait.
func (ws *watches) tend() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	var paths []string
	for path, h := range ws.held {
		if !h.watched {
			paths = append(paths, path)
		}
	}
	if len(paths) == 0 || ws.tending {
		return
	}
	ws.tending = true
	go func() {
		defer func() {
			ws.mu.Lock()
			defer ws.mu.Unlock()
			ws.tending = false
		}()
		for _, path := range paths {
			if !ws.watchHeld(path) {
				return
			}
		}
	}()
}

// watchHeld sets a watch on the node of a grant. false: it cannot be set now.
func (ws *watches) watchHeld(path string) bool {
	_, err := call(ws.s.link.life, ws.s, func() (struct{}, error) {
		_, _, _, err := ws.s.conn.GetW(path)
		return struct{}{}, err
	})
	ws.mu.Lock()
	h, held := ws.held[path]
	gone := held && errors.Is(err, zk.ErrNoNode)
	switch {
	case gone:
		delete(ws.held, path)
	case held && err == nil:
		h.watched = true
		ws.held[path] = h
	}
	ws.mu.Unlock()
	if gone {
		ws.lost(h)
	}
	return err == nil || errors.Is(err, zk.ErrNoNode)
}
