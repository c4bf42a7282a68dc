package redislock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// rawRelease is what everybody writes who releases a Redis lock by hand.
var rawRelease = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`)

// BenchmarkPair times acquire and release beside the two commands that a lock without
// token, renewal or settlement needs: SET NX PX, and a script that compares and deletes.
// They take turns within one run, so that their ratio means something on a busy machine.
func BenchmarkPair(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			addr := testserver.Redis(b).Addr()
			client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: callers})
			defer client.Close()
			mine := redis.NewClient(&redis.Options{Addr: addr, PoolSize: callers, ContextTimeoutEnabled: true})
			defer mine.Close()
			l, err := redislock.New(mine, redislock.Config{Config: lock.Config{TTL: 15 * time.Second}})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			ctx := context.Background()
			raw := func(key string) error {
				if err := client.SetNX(ctx, key, "0123456789abcdef0123456789abcdef", 15*time.Second).Err(); err != nil {
					return err
				}
				return rawRelease.Run(ctx, client, []string{key}, "0123456789abcdef0123456789abcdef").Err()
			}
			pair := func(key string) error {
				h, err := l.TryAcquire(ctx, key)
				if err != nil {
					return err
				}
				return h.Release(ctx)
			}
			var rawTimes, times []time.Duration
			for b.Loop() {
				rawTimes = append(rawTimes, round(b, callers, raw))
				times = append(times, round(b, callers, pair))
			}
			r, t := median(rawTimes), median(times)
			b.ReportMetric(float64(r.Nanoseconds())/1000, "raw-µs/pair")
			b.ReportMetric(float64(t.Nanoseconds())/1000, "holdfast-µs/pair")
			b.ReportMetric(float64(t)/float64(r), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// round has the callers do pairs for a while, and returns the time of one.
func round(b *testing.B, callers int, pair func(key string) error) time.Duration {
	const pairs = 2000
	var left atomic.Int64
	left.Store(pairs)
	var wg sync.WaitGroup
	began := time.Now()
	for i := range callers {
		wg.Go(func() {
			key := fmt.Sprint("bench-", i)
			for left.Add(-1) >= 0 {
				if err := pair(key); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began) / pairs
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
