package memlock_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

var modes = []struct {
	name     string
	opts     []memlock.Option
	promises lock.Features
}{
	{"Sessions", nil, lock.Fencing | lock.FIFO | lock.SharedMode | lock.Leased},
	{"OwnLeases", []memlock.Option{memlock.OwnLeases()}, lock.Fencing | lock.SharedMode | lock.Leased},
}

// TestConformance runs the suite on a clock of its own: to the nanosecond, and in
// no time.
func TestConformance(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.name, func(t *testing.T) {
			for _, c := range conformance.Cases() {
				t.Run(c.Name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						h := harness(memlock.NewServer(mode.opts...), mode.promises, 10*time.Second)
						h.Slack = time.Millisecond
						c.Run(t, h)
					})
				})
			}
		})
	}
}

func harness(server *memlock.Server, promises lock.Features, ttl time.Duration) *conformance.Harness {
	openConfig := func(_ *testing.T, cfg lock.Config) (lock.Locker, error) {
		if cfg.TTL == 0 {
			cfg.TTL = ttl
		}
		return server.Locker(cfg)
	}
	return &conformance.Harness{
		TTL:        ttl,
		Promises:   promises,
		OpenConfig: openConfig,
		Open: func(t *testing.T) lock.Locker {
			l, err := openConfig(t, lock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		Revoke:      func(_ *testing.T, key string) { server.Revoke(key) },
		Isolate:     func(_ *testing.T, l lock.Locker) func() { return server.Stall(l) },
		SlowReplies: func(_ *testing.T, l lock.Locker, d time.Duration) func() { return server.Slow(l, d) },
		LoseReply:   func(_ *testing.T, l lock.Locker) { loseReply(server, l) },
		Left:        func(_ *testing.T, key string) time.Duration { return server.Left(key) },
		Skip:        map[string]string{"Restart": "the server is the process"},
	}
}

var errLost = errors.New("connection reset")

// loseReply loses the answer to the next request of l.
func loseReply(server *memlock.Server, l lock.Locker) {
	lost := false
	server.Fail(func(op memlock.Op) error {
		if op.Locker != l || !op.Reply || lost {
			return nil
		}
		lost = true
		return errLost
	})
}
