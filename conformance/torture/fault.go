package torture

import (
	"math/rand/v2"
	"time"
)

// Assumption is what a fault takes away from what a lock's promises rest on. Zero is a
// fault under which all of them hold.
type Assumption uint8

const (
	// Ownership: the server keeps a lock for as long as it has granted it. Without it two
	// may hold one key.
	Ownership Assumption = 1 << iota
	// TokenOrder: the server remembers, or can tell by its clock, which tokens it has
	// given. Without it a new holder may be refused by the resource.
	TokenOrder
)

// Fault is one way to break something.
type Fault struct {
	Name   string
	Breaks Assumption
	// Resets is set if it may end connections. Backends without lock.Leased keep a lock on
	// a connection: for them it breaks Ownership, too.
	Resets bool
	// Server is set if it strikes all workers at once, and not one of them.
	Server bool
	// Lengths are for how long, in TTLs; one is chosen each time.
	Lengths []float64
	// Inject injects the fault, and returns what heals it, or nil. Both are called by the
	// test's goroutine, one at a time.
	Inject func(Strike) (heal func())
	// kills is set if it ends processes.
	kills bool
}

// Strike is one injection of a [Fault].
type Strike struct {
	Worker *Worker // nil if it strikes the server
	Length time.Duration
	TTL    time.Duration
	Keys   []string // that workers contend for
	Rand   *rand.Rand
}

// Key returns one of the keys.
func (s Strike) Key() string { return s.Keys[s.Rand.IntN(len(s.Keys))] }

// around are the lengths that matter to a lease: within it, over it, and far beyond.
var around = []float64{0.2, 0.5, 0.9, 1.3, 2}

// ProcessFaults are those that workers have as processes.
func ProcessFaults() []Fault {
	return []Fault{
		{
			Name: "kill -9", Lengths: []float64{0.05, 0.4, 1.2}, kills: true,
			Inject: func(s Strike) func() {
				s.Worker.kill()
				return s.Worker.start
			},
		},
		{
			Name: "SIGSTOP", Lengths: []float64{0.5, 1.2, 3},
			Inject: func(s Strike) func() {
				s.Worker.pause()
				return s.Worker.resume
			},
		},
	}
}

// Server is a server that runs as a process of the test.
type Server interface {
	Pause()
	Resume()
	Stop() // as its operator does
	Kill() // as a crash does
	Start()
}

// ServerFaults are those of a server that keeps its data over its death. breaks is what its
// death breaks nevertheless.
func ServerFaults(server Server, breaks Assumption) []Fault {
	return []Fault{
		{
			Name: "server SIGSTOP", Server: true, Lengths: []float64{0.2, 0.6, 1.3},
			Inject: func(Strike) func() {
				server.Pause()
				return server.Resume
			},
		},
		{
			Name: "server restart", Server: true, Resets: true, Lengths: []float64{0, 0.3, 1}, Breaks: breaks,
			Inject: func(Strike) func() {
				server.Stop()
				return server.Start
			},
		},
		{
			Name: "server kill -9", Server: true, Resets: true, Lengths: []float64{0, 0.3, 1}, Breaks: breaks,
			Inject: func(Strike) func() {
				server.Kill()
				return server.Start
			},
		},
	}
}

// Deletion is the lock on a key taken away by hand.
func Deletion(revoke func(key string)) Fault {
	return Fault{
		Name: "deletion by hand", Server: true, Breaks: Ownership,
		Inject: func(s Strike) func() {
			revoke(s.Key())
			return nil
		},
	}
}
