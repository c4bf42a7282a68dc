package etcdlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// BenchmarkPair times acquire and release beside concurrency.Mutex, which has no token,
// settles nothing, and notices no deletion. They take turns within one run, so that their
// ratio means something on a busy machine: at a server that syncs its log to the disk, as they
// do, and at one that spares it, so that only the work itself is left.
func BenchmarkPair(b *testing.B) {
	b.Run("disk=yes", func(b *testing.B) { benchmarkPair(b, testserver.Etcd(b, testserver.Durable())) })
	b.Run("disk=no", func(b *testing.B) { benchmarkPair(b, testserver.Etcd(b)) })
}

func benchmarkPair(b *testing.B, s *testserver.Server) {
	theirs := mutexes(b, s, 1)[0]
	l := lockerOn(b, dial(b, s.Addr()), etcdlock.Config{Config: lock.Config{TTL: 15 * time.Second}})
	mine := waiting(l)
	var mutexTimes, times []time.Duration
	for b.Loop() {
		mutexTimes = append(mutexTimes, round(b, theirs))
		times = append(times, round(b, mine))
	}
	m, t := median(mutexTimes), median(times)
	b.ReportMetric(float64(m.Nanoseconds())/1000, "mutex-µs/pair")
	b.ReportMetric(float64(t.Nanoseconds())/1000, "holdfast-µs/pair")
	b.ReportMetric(float64(t)/float64(m), "ratio")
	b.ReportMetric(0, "ns/op")
}

// round does pairs for a while, and returns the time of one.
func round(b *testing.B, pair contender) time.Duration {
	const pairs = 200
	began := time.Now()
	for range pairs {
		if err := pair(context.Background(), func() {}); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began) / pairs
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}

// BenchmarkHandOver has Lockers, each with a connection of its own, take one lock from each
// other and hold it for no time, beside as many sessions with a concurrency.Mutex. They take
// turns, a second each.
func BenchmarkHandOver(b *testing.B) {
	for _, lockers := range []int{8, 32} {
		b.Run(fmt.Sprintf("lockers=%d", lockers), func(b *testing.B) {
			s := testserver.Etcd(b)
			theirs := mutexes(b, s, lockers)
			var mine []contender
			for range lockers {
				l := lockerOn(b, dial(b, s.Addr()), etcdlock.Config{Config: lock.Config{TTL: 15 * time.Second}})
				mine = append(mine, waiting(l))
			}
			var held, mutexHeld []contest
			for b.Loop() {
				mutexHeld = append(mutexHeld, contend(b, theirs))
				held = append(held, contend(b, mine))
			}
			m, t := reportContests(b, "mutex", mutexHeld), reportContests(b, "holdfast", held)
			b.ReportMetric(t/m, "ratio")
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

// mutexes returns contenders with a session, and a client, each.
func mutexes(b *testing.B, s *testserver.Server, n int) []contender {
	var all []contender
	for range n {
		session, err := concurrency.NewSession(dial(b, s.Addr()), concurrency.WithTTL(15))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { session.Close() })
		m := concurrency.NewMutex(session, "/mutex/one")
		all = append(all, func(ctx context.Context, held func()) error {
			if err := m.Lock(ctx); err != nil {
				return err
			}
			held()
			return m.Unlock(context.Background())
		})
	}
	return all
}

// contest is what came of a second.
type contest struct {
	handOvers int // times that another got the lock than the last holder
	waits     []time.Duration
}

func contend(b *testing.B, all []contender) contest {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var c contest
	var mu sync.Mutex
	last := -1
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
	return c
}

// reportContests reports the medians of the contests, and returns that of the hand-overs.
func reportContests(b *testing.B, who string, contests []contest) float64 {
	var rate, longest, typical []float64
	for _, c := range contests {
		slices.Sort(c.waits)
		rate = append(rate, float64(c.handOvers))
		typical = append(typical, c.waits[len(c.waits)/2].Seconds()*1000)
		longest = append(longest, c.waits[len(c.waits)-1].Seconds()*1000)
	}
	middle := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	b.ReportMetric(middle(rate), who+"-handovers/s")
	b.ReportMetric(middle(typical), who+"-ms-median")
	b.ReportMetric(middle(longest), who+"-ms-longest")
	return middle(rate)
}
