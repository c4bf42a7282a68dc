package zklock_test

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/zklock"
)

// BenchmarkPair times acquire and release, by one caller, beside zk.Lock, the lock of the
// client library, which has no context, no loss and no token. They take turns within one
// run, so that their ratio means something on a busy machine.
func BenchmarkPair(b *testing.B) { onDiskAndOff(b, benchmarkPair) }

// BenchmarkHandOver times the locks of one key that 8 Lockers take from each other.
func BenchmarkHandOver(b *testing.B) { onDiskAndOff(b, benchmarkHandOver) }

// onDiskAndOff runs a benchmark at a server that syncs its log to the disk, as they do, and at
// one that spares it, so that only the work itself is left.
func onDiskAndOff(b *testing.B, benchmark func(b *testing.B, addr string)) {
	b.Run("disk=yes", func(b *testing.B) { benchmark(b, testserver.ZooKeeper(b, testserver.Durable()).Addr()) })
	b.Run("disk=no", func(b *testing.B) { benchmark(b, testserver.ZooKeeper(b).Addr()) })
}

func benchmarkPair(b *testing.B, addr string) {
	ctx := context.Background()
	l := lockerOn(b, zklock.Config{}, addr)
	pair := func() error {
		h, err := l.Acquire(ctx, "bench")
		if err != nil {
			return err
		}
		return h.Release(ctx)
	}
	peer := zk.NewLock(dial(b, addr), "/peer/bench", zk.WorldACL(zk.PermAll))
	peerPair := func() error {
		if err := peer.Lock(); err != nil {
			return err
		}
		return peer.Unlock()
	}
	compare(b, "pair", func() time.Duration { return timed(b, 5, pair) }, func() time.Duration { return timed(b, 5, peerPair) })
}

func benchmarkHandOver(b *testing.B, addr string) {
	const lockers = 8
	ctx := context.Background()
	var pairs, peerPairs []func() error
	for range lockers {
		l := lockerOn(b, zklock.Config{}, addr)
		pairs = append(pairs, func() error {
			h, err := l.Acquire(ctx, "bench")
			if err != nil {
				return err
			}
			return h.Release(ctx)
		})
		peer := zk.NewLock(dial(b, addr), "/peer/bench", zk.WorldACL(zk.PermAll))
		peerPairs = append(peerPairs, func() error {
			if err := peer.Lock(); err != nil {
				return err
			}
			return peer.Unlock()
		})
	}
	compare(b, "hand-over", func() time.Duration { return together(b, 80, pairs) }, func() time.Duration { return together(b, 80, peerPairs) })
}

func timed(b *testing.B, n int, pair func() error) time.Duration {
	began := time.Now()
	for range n {
		if err := pair(); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began) / time.Duration(n)
}

// together has everybody do pairs, n in all, and returns the time of one.
func together(b *testing.B, n int, pairs []func() error) time.Duration {
	var left atomic.Int64
	left.Store(int64(n))
	var wg sync.WaitGroup
	began := time.Now()
	for _, pair := range pairs {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := pair(); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return time.Since(began) / time.Duration(n)
}

// compare has both work in turns, and reports medians. That of the ratio is of rounds that
// were next to each other, when the machine was as busy for the one as for the other.
func compare(b *testing.B, unit string, mine, peer func() time.Duration) {
	var times, peerTimes []time.Duration
	var ratios []float64
	for b.Loop() {
		p := peer()
		t := mine()
		times, peerTimes, ratios = append(times, t), append(peerTimes, p), append(ratios, float64(t)/float64(p))
	}
	b.ReportMetric(float64(median(peerTimes).Nanoseconds())/1000, "peer-µs/"+unit)
	b.ReportMetric(float64(median(times).Nanoseconds())/1000, "holdfast-µs/"+unit)
	b.ReportMetric(median(ratios), "ratio")
	b.ReportMetric(0, "ns/op")
}

func median[T cmp.Ordered](d []T) T {
	slices.Sort(d)
	return d[len(d)/2]
}
