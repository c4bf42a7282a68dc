package driver

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// gates make the goroutines of one Locker exclude each other before they ask the
// server: a FIFO reader/writer gate for every key in use. Servers that know only
// sessions would let a second goroutine of the same session in; others would be
// asked by every waiter when the first would do.
//
// A pass is held from before the first request of an acquisition until its grant
// is surely gone from the server, or the engine has given up on it. Shared acquisitions
// go in together, and each of them asks the server, so that writers elsewhere are not
// starved by readers here.
type gates struct {
	closing <-chan struct{} // ends every wait

	mu sync.Mutex
	m  map[string]*gate
}

type gate struct {
	key    string
	mode   lock.Mode // of those inside
	inside int
	taken  int   // how many inside hold the key, or have been told that it is taken
	until  Stamp // when there was one last; 0: there is, or never was
	queue  []*entrant
}

// stale is how long what was seen of a key counts while nobody has anything new to say.
const stale = 250 * time.Millisecond

// seenTaken says whether the last that those inside knew of the key, and not long ago, is
// that it is taken.
func (g *gate) seenTaken() bool {
	return g.taken > 0 || g.until != 0 && Now().Sub(g.until) <= stale
}

// untaken notes that one inside has nothing of the key any more.
func (g *gate) untaken(now Stamp) {
	if g.taken--; g.taken == 0 {
		g.until = now
	}
}

// pass is the right to talk to the server about a key. An acquisition has it, then its
// handle; and beside them whatever is still to be settled at the server.
type pass struct {
	gate  *gate // nil once left by all
	users int
	taken bool
}

type entrant struct {
	mode    lock.Mode
	try     bool
	waiting func()        // see enter
	decided chan struct{} // closed when let in or refused
	refused bool
}

// enter waits for the gate of key. With try it waits only as long as it is unsure
// whether the key is taken, and returns ErrHeld when it is.
//
// If ctx ends the wait, the error is ErrHeld if those inside knew the key to be taken
// then, or just before, and ErrUnavailable if they were still asking. waiting is called,
// holding no lock, when the entrant stands behind a key that is taken: each time that
// those inside find it so. It may be late, when the entrant does not wait any more.
func (gs *gates) enter(ctx context.Context, key string, mode lock.Mode, try bool, waiting func()) (*pass, error) {
	gs.mu.Lock()
	g := gs.m[key]
	if g == nil {
		g = &gate{key: key}
		gs.m[key] = g
	}
	if len(g.queue) == 0 && g.admits(mode) {
		g.mode = mode
		g.inside++
		gs.mu.Unlock()
		return &pass{gate: g, users: 1}, nil
	}
	taken := g.taken > 0
	if try && taken {
		gs.mu.Unlock()
		return nil, lock.ErrHeld
	}
	en := &entrant{mode: mode, try: try, waiting: waiting, decided: make(chan struct{})}
	g.queue = append(g.queue, en)
	gs.mu.Unlock()
	if taken {
		waiting()
	}
	return gs.wait(ctx, g, en)
}

func (gs *gates) wait(ctx context.Context, g *gate, en *entrant) (*pass, error) {
	select {
	case <-en.decided:
	case <-ctx.Done():
		if err := gs.giveUp(g, en); err != nil {
			return nil, err
		}
	case <-gs.closing:
		if err := gs.giveUp(g, en); err != nil {
			return nil, err
		}
	}
	if en.refused {
		return nil, lock.ErrHeld
	}
	return &pass{gate: g, users: 1}, nil
}

// giveUp takes en out of the queue. nil: it was decided at the same moment, and what was
// given is used, or handed back by the caller.
func (gs *gates) giveUp(g *gate, en *entrant) error {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	select {
	case <-en.decided:
		return nil
	default:
	}
	g.remove(en)
	gs.admit(g)
	if g.seenTaken() {
		return lock.ErrHeld
	}
	return lock.ErrUnavailable
}

// take records that p's acquisition holds the key or knows it to be taken. Those
// who only try and stand behind it are refused then. It returns the others who do, for the
// caller to tell them when it holds no lock: see entrant.waiting.
func (gs *gates) take(p *pass) []*entrant {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if p.gate == nil || p.taken {
		return nil
	}
	p.taken = true
	p.gate.taken++
	kept := p.gate.queue[:0]
	for _, en := range p.gate.queue {
		if !en.try {
			kept = append(kept, en)
			continue
		}
		en.refused = true
		close(en.decided)
	}
	clear(p.gate.queue[len(kept):])
	p.gate.queue = kept
	gs.admit(p.gate)
	return slices.Clone(p.gate.queue)
}

// untake records that it does not, or does not know any more.
func (gs *gates) untake(p *pass, now Stamp) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if p.gate == nil || !p.taken {
		return
	}
	p.taken = false
	p.gate.untaken(now)
}

// use adds a user to p, who leaves it, too.
func (gs *gates) use(p *pass) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	p.users++
}

// leave gives p back for one of its users. The last one lets in whoever is next.
func (gs *gates) leave(p *pass) {
	gs.mu.Lock()
	defer gs.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	g := p.gate
	if g == nil { // a grant that came when nobody reckoned with it any more
		return
	}
	p.gate = nil
	if p.taken {
		g.untaken(Now())
	}
	g.inside--
	gs.admit(g)
}

// admit lets in from the head of the queue what goes together, and forgets a gate
// that nobody uses.
func (gs *gates) admit(g *gate) {
	for len(g.queue) > 0 && g.admits(g.queue[0].mode) {
		en := g.queue[0]
		g.queue[0] = nil
		g.queue = g.queue[1:]
		g.mode = en.mode
		g.inside++
		close(en.decided)
	}
	if g.inside == 0 && len(g.queue) == 0 && gs.m[g.key] == g {
		delete(gs.m, g.key)
	}
}

func (g *gate) admits(mode lock.Mode) bool {
	return g.inside == 0 || (g.mode == lock.ModeShared && mode == lock.ModeShared)
}

func (g *gate) remove(en *entrant) {
	for i, other := range g.queue {
		if other == en {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return
		}
	}
}
