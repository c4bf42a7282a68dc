package memlock

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Op is one step of a request, as [Server.Fail] sees it.
type Op struct {
	Kind   string      // "acquire", "abandon", "renew", "release", "inspect", "open" or "end" (a session)
	Key    string      // empty for "renew", "open" and "end"
	Locker lock.Locker // who asks
	Reply  bool        // false: before the server carries the request out; true: after
}

// Fail has fail asked at each step of each request; nil removes it. An error before
// the request is carried out is a request that the server never saw; an error
// afterwards is an answer that was lost. The Locker sees the error as one that
// proves nothing, whichever it was. fail must not call the Server.
func (s *Server) Fail(fail func(Op) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = fail
}

// Revoke takes the lock on key away from all who hold it, behind their backs, as an
// operator would who deletes its record. Where grants live on sessions, the server
// tells the holders; where each has a lease of its own, they find out when they
// renew it.
func (s *Server) Revoke(key string) {
	s.mu.Lock()
	removed := s.remove(key, func(h *hold) bool { return h.token != 0 })
	s.mu.Unlock()
	for _, h := range removed {
		if h.lease.revoked != nil {
			h.lease.revoked(h.id)
		}
	}
}

// Stall cuts l off from the server until heal is called: no byte passes in either
// direction, nothing is closed, and requests that were sent meanwhile arrive later.
// l must be a Locker of this server. heal may be called again.
func (s *Server) Stall(l lock.Locker) (heal func()) {
	return s.client(l).link.stall()
}

// Slow delays every answer to l by d, until heal is called; requests arrive at
// once. l must be a Locker of this server.
func (s *Server) Slow(l lock.Locker, d time.Duration) (heal func()) {
	c := s.client(l)
	c.slow.Store(int64(d))
	return func() { c.slow.Store(0) }
}

func (s *Server) client(l lock.Locker) *client {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[l]
	if c == nil {
		panic("memlock: a fault for a Locker that is closed, or of another server")
	}
	return c
}

var (
	errRevoked      = errors.New("the lock was revoked")
	errSessionEnded = errors.New("the session has ended")
	errAbandoned    = errors.New("the request was abandoned")
)
