package memlock

import (
	"time"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// Left is how much longer the server keeps the lock on key; 0: there is none.
func (s *Server) Left(key string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(key)
	if e := s.keys[key]; e != nil && len(e.holds) > 0 {
		return e.holds[0].lease.expires.Sub(driver.Now())
	}
	return 0
}
