package torture_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	_ "github.com/holdfast-go/holdfast/redislock"
)

func redisServer(t *testing.T) *torture.Harness {
	server := testserver.Redis(t, testserver.Durable())
	network := torture.NewNetwork(t, server.Addr())
	admin := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { _ = admin.Close() })
	faults := slices.Concat(torture.ProcessFaults(), network.Faults(), redisFaults(admin))
	if server.CanFault() {
		faults = append(faults, torture.ServerFaults(server, 0)...)
		faults = append(faults, torture.Fault{
			// Tokens are at least the server's clock: they go on rising.
			Name: "server loses its data", Server: true, Resets: true, Breaks: torture.Ownership, Lengths: []float64{0, 0.5},
			Inject: func(torture.Strike) func() {
				admin.FlushAll(context.Background())
				server.Kill()
				return server.Start
			},
		})
	}
	return &torture.Harness{
		Name:   "Redis",
		TTL:    2 * time.Second,
		URL:    func(worker int) string { return "redis://" + network.Addr(worker) },
		Direct: func() (lock.Locker, error) { return lock.Open(context.Background(), "redis://"+server.Addr()) },
		Faults: faults,
	}
}

func lockName(key string) string { return "holdfast:{" + key + "}" }

// redisFaults are what an operator can do to any server.
func redisFaults(admin *redis.Client) []torture.Fault {
	now := []float64{0}
	return []torture.Fault{
		torture.Deletion(func(key string) { admin.Del(context.Background(), lockName(key)) }),
		{
			// What a step of the server's clock does to all leases, which end at a moment of that.
			Name: "leases cut short, as by a clock", Server: true, Breaks: torture.Ownership, Lengths: now,
			Inject: func(s torture.Strike) func() {
				step := upTo(s, s.TTL)
				for _, key := range s.Keys {
					if left := admin.PTTL(context.Background(), lockName(key)).Val(); left > 0 {
						admin.PExpire(context.Background(), lockName(key), max(left-step, time.Millisecond))
					}
				}
				return nil
			},
		},
		{
			Name: "subscriptions killed", Server: true, Lengths: now,
			Inject: func(torture.Strike) func() {
				admin.ClientKillByFilter(context.Background(), "TYPE", "pubsub")
				return nil
			},
		},
		{
			Name: "scripts forgotten", Server: true, Lengths: now,
			Inject: func(torture.Strike) func() {
				admin.ScriptFlush(context.Background())
				return nil
			},
		},
	}
}
