package torture_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// Both kinds of server that memlock stands for. Nothing is ever on its way for long, so the
// TTL can be short.
const memTTL = time.Second

func memSessions(*testing.T) *torture.Harness { return memory("memory, sessions") }
func memOwnLeases(*testing.T) *torture.Harness {
	return memory("memory, own leases", memlock.OwnLeases())
}

func memory(name string, opts ...memlock.Option) *torture.Harness {
	server := memlock.NewServer(opts...)
	f := &failing{odds: make(map[lock.Locker]odds)}
	server.Fail(f.fail)
	return &torture.Harness{
		Name:   name,
		TTL:    memTTL,
		Open:   func(_ int, cfg lock.Config) (lock.Locker, error) { return server.Locker(cfg) },
		Direct: func() (lock.Locker, error) { return server.Locker(lock.Config{TTL: memTTL}) },
		Faults: []torture.Fault{
			{
				Name: "partition", Lengths: []float64{0.2, 0.5, 0.9, 1.3, 2},
				Inject: func(s torture.Strike) func() { return server.Stall(s.Worker.Locker()) },
			},
			{
				Name: "latency of TTL/6", Lengths: []float64{0.5, 1, 2},
				Inject: func(s torture.Strike) func() {
					return server.Slow(s.Worker.Locker(), s.TTL/12+upTo(s, s.TTL/6))
				},
			},
			{
				Name: "latency of the TTL", Lengths: []float64{0.5, 1, 2},
				Inject: func(s torture.Strike) func() {
					return server.Slow(s.Worker.Locker(), s.TTL/2+upTo(s, s.TTL))
				},
			},
			{
				Name: "latency, then partition", Lengths: []float64{1, 1.5, 2.5},
				Inject: func(s torture.Strike) func() {
					l := s.Worker.Locker()
					fast := server.Slow(l, s.TTL/8)
					var mu sync.Mutex
					heal := func() {}
					cut := time.AfterFunc(s.TTL/3+upTo(s, s.TTL/3), func() {
						mu.Lock()
						defer mu.Unlock()
						heal = server.Stall(l)
					})
					return func() {
						cut.Stop()
						mu.Lock()
						defer mu.Unlock()
						heal()
						fast()
					}
				},
			},
			f.fault("requests lost", odds{request: 0.5}),
			f.fault("replies lost", odds{reply: 0.5}),
			f.fault("all replies lost", odds{reply: 1}),
			torture.Deletion(server.Revoke),
		},
	}
}

// upTo is a choice of the seed's.
func upTo(s torture.Strike, d time.Duration) time.Duration {
	return time.Duration(s.Rand.Int64N(int64(d)))
}

// failing fails some requests of some Lockers.
type failing struct {
	mu   sync.Mutex
	odds map[lock.Locker]odds
}

type odds struct{ request, reply float64 }

var errInjected = errors.New("injected")

func (f *failing) fail(op memlock.Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	o := f.odds[op.Locker]
	if op.Reply && rand.Float64() < o.reply || !op.Reply && rand.Float64() < o.request {
		return errInjected
	}
	return nil
}

func (f *failing) fault(name string, o odds) torture.Fault {
	set := func(l lock.Locker, o odds) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.odds[l] = o
	}
	return torture.Fault{
		Name: name, Lengths: []float64{0.3, 0.7, 1.5},
		Inject: func(s torture.Strike) func() {
			l := s.Worker.Locker()
			set(l, o)
			return func() { set(l, odds{}) }
		},
	}
}
