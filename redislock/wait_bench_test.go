package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// BenchmarkHandOver has Lockers, each with connections of its own, take one lock from each
// other and hold it for no time, beside others that ask for it every 5 ms with the two
// commands of a lock made by hand. They take turns, a second each.
func BenchmarkHandOver(b *testing.B) {
	for _, lockers := range []int{8, 32} {
		b.Run(fmt.Sprintf("lockers=%d", lockers), func(b *testing.B) {
			s := testserver.Redis(b)
			admin := redis.NewClient(&redis.Options{Addr: s.Addr()})
			defer admin.Close()
			var mine, polling []contender
			for i := range lockers {
				c := redis.NewClient(&redis.Options{Addr: s.Addr(), ContextTimeoutEnabled: true})
				defer c.Close()
				l, err := redislock.New(c, redislock.Config{Config: lock.Config{TTL: 15 * time.Second}})
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				mine = append(mine, waiting(l))
				polling = append(polling, pollingEvery(5*time.Millisecond, c, fmt.Sprintf("%032d", i)))
			}
			var queued, polled []contest
			for b.Loop() {
				polled = append(polled, contend(b, admin, polling))
				queued = append(queued, contend(b, admin, mine))
			}
			reportContests(b, "polling", polled)
			reportContests(b, "holdfast", queued)
			b.ReportMetric(0, "ns/op")
		})
	}
}

// contender takes the lock and gives it back; between the two it calls held.
type contender func(ctx context.Context, held func()) error

func waiting(l lock.Locker) contender {
	return func(ctx context.Context, held func()) error {
		h, err := l.Acquire(ctx, "one")
		if err != nil {
			return err
		}
		held()
		return h.Release(context.Background())
	}
}

func pollingEvery(d time.Duration, c *redis.Client, id string) contender {
	return func(ctx context.Context, held func()) error {
		for {
			ok, err := c.SetNX(context.Background(), "polled", id, 15*time.Second).Result()
			if err != nil {
				return err
			}
			if ok {
				break
			}
			select {
			case <-time.After(d):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		held()
		return rawRelease.Run(context.Background(), c, []string{"polled"}, id).Err()
	}
}

// contest is what came of a second.
type contest struct {
	handOvers int // times that another got the lock than the last holder
	commands  int
	waits     []time.Duration
}

func contend(b *testing.B, admin *redis.Client, all []contender) contest {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var c contest
	var mu sync.Mutex
	last := -1
	before := commands(b, admin)
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				err := one(ctx, func() {
					mu.Lock()
					defer mu.Unlock()
					c.waits = append(c.waits, time.Since(began))
					if last != i {
						c.handOvers++
					}
					last = i
				})
				if err != nil && !errors.Is(err, context.DeadlineExceeded) {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	c.commands = commands(b, admin) - before
	return c
}

// commands returns how many the server has carried out for clients.
func commands(b *testing.B, admin *redis.Client) int {
	info, err := admin.InfoMap(context.Background(), "commandstats").Result()
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for name, stat := range info["Commandstats"] {
		var calls int
		_, _ = fmt.Sscanf(stat, "calls=%d", &calls)
		if slices.Contains([]string{"cmdstat_evalsha", "cmdstat_ping", "cmdstat_subscribe"}, name) {
			n += calls
		}
	}
	return n
}

// reportContests reports the medians of the contests.
func reportContests(b *testing.B, who string, contests []contest) {
	var rate, longest, typical, commands []float64
	for _, c := range contests {
		slices.Sort(c.waits)
		rate = append(rate, float64(c.handOvers))
		typical = append(typical, c.waits[len(c.waits)/2].Seconds()*1000)
		longest = append(longest, c.waits[len(c.waits)-1].Seconds()*1000)
		commands = append(commands, float64(c.commands)/float64(max(1, c.handOvers)))
	}
	middle := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(middle(rate), who+"-handovers/s")
	b.ReportMetric(middle(typical), who+"-ms-median")
	b.ReportMetric(middle(longest), who+"-ms-longest")
	if who == "holdfast" {
		b.ReportMetric(middle(commands), "commands/handover")
	}
}
