package memlock

import (
	"math"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// Server is one lock server in memory. It is safe for concurrent use.
type Server struct {
	ownLeases bool

	mu        sync.Mutex
	token     lock.Token
	keys      map[string]*entry
	waited    map[string]bool         // keys that a polling writer may have left behind
	abandoned map[string]driver.Stamp // request IDs that must not be granted any more, and until when that matters
	clients   map[lock.Locker]*client
	fail      func(Op) error
}

// Option changes a Server.
type Option func(*Server)

// OwnLeases gives each grant a lease of its own, and has waiters poll.
func OwnLeases() Option { return func(s *Server) { s.ownLeases = true } }

// NewServer returns an empty server.
func NewServer(opts ...Option) *Server {
	s := &Server{
		keys:      make(map[string]*entry),
		waited:    make(map[string]bool),
		abandoned: make(map[string]driver.Stamp),
		clients:   make(map[lock.Locker]*client),
	}
	for _, opt := range opts {
		opt(s)
	}
	return s
}

// Locker returns a Locker of this server, with a connection of its own. Its error
// matches [lock.ErrInvalid].
func (s *Server) Locker(cfg lock.Config) (lock.Locker, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return nil, err
	}
	c := &client{server: s, ttl: cfg.TTL}
	l, err := driver.New(func(h driver.Host) (driver.Driver, error) { c.host = h; return c, nil }, cfg)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.clients[l] = c
	c.locker = l
	s.mu.Unlock()
	return l, nil
}

// entry is what the server knows of a key that is held or waited for.
type entry struct {
	holds  []*hold
	queue  []*hold      // in the order of arrival
	writer driver.Stamp // until then no new reader is let in: one that waits for the key alone polls
}

// hold is a grant, or a place in the queue.
type hold struct {
	key, id, owner string
	mode           lock.Mode
	waits          bool // it comes back if it is not let in
	token          lock.Token
	since          time.Time
	lease          *serverLease
	answer         func(error) // of a place in the queue: called once, with nil when granted
}

// serverLease is what keeps holds alive.
type serverLease struct {
	ttl     time.Duration
	expires driver.Stamp
	ended   bool
	timer   *time.Timer      // of a session; the lease of a single grant is looked at when somebody asks
	holds   map[string]*hold // of a session, by request ID
	lost    func()           // tells the client of a session that it is over
	revoked func(id string)  // tells the client of a session that a grant is gone
}

// The methods below are the server's side. They run with s.mu held.

// acquire grants h, or returns ErrHeld, or puts h into the queue if it has a way to
// answer later: then its token is still zero. It is idempotent by request ID.
func (s *Server) acquire(h *hold) (*hold, error) {
	if _, ok := s.abandoned[h.id]; ok {
		return nil, errAbandoned
	}
	if h.lease.ended {
		return nil, errSessionEnded
	}
	e := s.entry(h.key)
	if old := e.find(h.id); old != nil {
		if old.lease != h.lease && !s.ownLeases {
			return nil, errAbandoned // left by a session that has ended for its client, and not yet here
		}
		return old, nil
	}
	switch {
	case len(e.queue) == 0 && s.admits(e, h):
		s.grant(e, h)
		if len(s.waited) > 1000 {
			s.forgetWaited()
		}
	case h.answer != nil:
		e.queue = append(e.queue, h)
		s.attach(h)
	default:
		return nil, lock.ErrHeld
	}
	return h, nil
}

// admits says whether h can hold beside those that do. Where waiters poll, one that
// wants the key for itself keeps new readers out for a moment, or would starve.
func (s *Server) admits(e *entry, h *hold) bool {
	now := driver.Now()
	if h.mode == lock.ModeExclusive {
		free := len(e.holds) == 0
		if !free && s.ownLeases && h.waits {
			e.writer = now.Add(writerPatience)
			s.waited[h.key] = true
		}
		return free
	}
	if now < e.writer {
		return false
	}
	return len(e.holds) == 0 || e.holds[0].mode == lock.ModeShared
}

// writerPatience is longer than the engine pauses between two polls.
const writerPatience = 500 * time.Millisecond

func (s *Server) grant(e *entry, h *hold) {
	s.token++
	h.token = s.token
	h.since = time.Now()
	if s.ownLeases {
		h.lease.expires = driver.Now().Add(h.lease.ttl)
	}
	if h.mode == lock.ModeExclusive {
		e.writer = math.MinInt64
	}
	e.holds = append(e.holds, h)
	s.attach(h)
}

// forgetWaited forgets keys that a writer waited for and did not come back to.
func (s *Server) forgetWaited() {
	for key := range s.waited {
		delete(s.waited, key)
		s.sweep(key)
	}
}

func (s *Server) attach(h *hold) {
	if h.lease.holds != nil {
		h.lease.holds[h.id] = h
	}
}

// remove takes the holds that match out of the key's entry, grants to those who
// come next, and says whether there were any.
func (s *Server) remove(key string, match func(*hold) bool) (removed []*hold) {
	e := s.keys[key]
	if e == nil {
		return nil
	}
	take := func(from []*hold) (kept []*hold) {
		for _, h := range from {
			if !match(h) {
				kept = append(kept, h)
				continue
			}
			removed = append(removed, h)
			if h.lease.holds != nil {
				delete(h.lease.holds, h.id)
			}
		}
		return kept
	}
	e.holds = take(e.holds)
	e.queue = take(e.queue)
	for len(e.queue) > 0 && s.admits(e, e.queue[0]) {
		next := e.queue[0]
		e.queue = e.queue[1:]
		s.grant(e, next)
		next.answer(nil)
	}
	if len(e.holds) == 0 && len(e.queue) == 0 && driver.Now() >= e.writer {
		delete(s.keys, key)
	}
	return removed
}

// entry returns the key's entry, without the grants whose leases are over.
func (s *Server) entry(key string) *entry {
	s.sweep(key)
	e := s.keys[key]
	if e == nil {
		e = &entry{writer: math.MinInt64}
		s.keys[key] = e
	}
	return e
}

func (s *Server) sweep(key string) {
	now := driver.Now()
	s.remove(key, func(h *hold) bool {
		return s.ownLeases && now >= h.lease.expires
	})
}

// find returns what there is of a request ID.
func (s *Server) find(key, id string) *hold {
	s.sweep(key)
	if e := s.keys[key]; e != nil {
		return e.find(id)
	}
	return nil
}

func (e *entry) find(id string) *hold {
	for _, list := range [][]*hold{e.holds, e.queue} {
		for _, h := range list {
			if h.id == id {
				return h
			}
		}
	}
	return nil
}

// abandon removes what there is of a request ID and lets nothing of it come later.
func (s *Server) abandon(key, id string, ttl time.Duration) {
	now := driver.Now()
	for old, until := range s.abandoned {
		if now >= until {
			delete(s.abandoned, old)
		}
	}
	s.abandoned[id] = now.Add(2 * ttl)
	s.remove(key, func(h *hold) bool { return h.id == id })
}

// openSession makes l a session that ends by itself if it is not renewed.
func (s *Server) openSession(l *serverLease) {
	l.expires = driver.Now().Add(l.ttl)
	l.holds = make(map[string]*hold)
	l.timer = time.AfterFunc(l.ttl, func() { s.expire(l) })
}

// expire is called by the session's timer, without s.mu.
func (s *Server) expire(l *serverLease) {
	s.mu.Lock()
	if l.ended {
		s.mu.Unlock()
		return
	}
	if left := l.expires.Sub(driver.Now()); left > 0 {
		l.timer.Reset(left)
		s.mu.Unlock()
		return
	}
	s.endSession(l)
	s.mu.Unlock()
	l.lost()
}

// endSession ends a session with all its holds and waits.
func (s *Server) endSession(l *serverLease) {
	if l.ended {
		return
	}
	l.ended = true
	l.timer.Stop()
	keys := make(map[string]bool)
	for _, h := range l.holds {
		keys[h.key] = true
		if h.token == 0 {
			h.answer(errSessionEnded)
		}
	}
	for key := range keys {
		s.remove(key, func(h *hold) bool { return h.lease == l })
	}
}

// renew extends a lease and says whether it was still there. hold is the single
// grant of a lease of its own.
func (s *Server) renew(l *serverLease, h *hold) bool {
	if h != nil && s.find(h.key, h.id) == nil {
		return false
	}
	if l.ended {
		return false
	}
	l.expires = driver.Now().Add(l.ttl)
	if l.timer != nil {
		l.timer.Reset(l.ttl)
	}
	return true
}

func (s *Server) inspect(key string) lock.Info {
	s.sweep(key)
	e := s.keys[key]
	if e == nil {
		return lock.Info{}
	}
	info := lock.Info{Waiters: len(e.queue)}
	for _, h := range e.holds {
		info.Holders = append(info.Holders, lock.Holder{
			Owner: h.owner, Token: h.token, Since: h.since, Shared: h.mode == lock.ModeShared,
		})
	}
	return info
}
