package pglock_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/pglock"
)

func benchPool(b *testing.B, s *testserver.Server, size int32) *pgxpool.Pool {
	b.Helper()
	cfg, err := pgxpool.ParseConfig(urlOf(s, ""))
	if err != nil {
		b.Fatal(err)
	}
	cfg.MaxConns = size
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	return pool
}

func benchLocker(b *testing.B, pool *pgxpool.Pool, noTokens bool) lock.Locker {
	b.Helper()
	l, err := pglock.New(pool, pglock.Config{NoTokens: noTokens})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	return l
}

// rawPair is what everybody writes who locks with pgx by hand.
func rawPair(ctx context.Context, pool *pgxpool.Pool, number int64, held func()) error {
	c, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer c.Release()
	if _, err := c.Exec(ctx, "SELECT pg_advisory_lock($1)", number); err != nil {
		return err
	}
	held()
	_, err = c.Exec(ctx, "SELECT pg_advisory_unlock($1)", number)
	return err
}

// BenchmarkPair times acquire and release, with tokens and without, beside the two
// statements on a pooled connection. They take turns within one run, so that their ratio
// means something on a busy machine.
func BenchmarkPair(b *testing.B) {
	s := testserver.Postgres(b)
	pool := benchPool(b, s, 1)
	tokens, none := benchLocker(b, pool, false), benchLocker(b, pool, true)
	ctx := context.Background()
	pair := func(l lock.Locker) func() error {
		return func() error {
			h, err := l.TryAcquire(ctx, "bench")
			if err != nil {
				return err
			}
			return h.Release(ctx)
		}
	}
	raw := func() error { return rawPair(ctx, pool, 1, func() {}) }
	names := []string{"raw", "tokens", "no-tokens"}
	times := make([][]time.Duration, len(names))
	for b.Loop() {
		for i, one := range []func() error{raw, pair(tokens), pair(none)} {
			const pairs = 100
			began := time.Now()
			for range pairs {
				if err := one(); err != nil {
					b.Fatal(err)
				}
			}
			times[i] = append(times[i], time.Since(began)/pairs)
		}
	}
	for i, name := range names {
		b.ReportMetric(float64(median(times[i]).Nanoseconds())/1000, name+"-µs/pair")
		b.ReportMetric(float64(median(times[i]))/float64(median(times[0])), name+"-ratio")
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkHandOver has eight Lockers take one lock from each other and hold it for no
// time, beside eight connections that call pg_advisory_lock. They take turns, a fifth of
// a second each.
func BenchmarkHandOver(b *testing.B) {
	const lockers = 8
	s := testserver.Postgres(b)
	ctx := context.Background()
	var mine, raw []func(context.Context, func()) error
	pool := benchPool(b, s, lockers)
	for range lockers {
		l := benchLocker(b, pool, false)
		mine = append(mine, func(ctx context.Context, held func()) error {
			h, err := l.Acquire(ctx, "bench")
			if err != nil {
				return err
			}
			held()
			return h.Release(ctx)
		})
		raw = append(raw, func(ctx context.Context, held func()) error { return rawPair(ctx, pool, 1, held) })
	}
	var rates, rawRates []float64
	for b.Loop() {
		rawRates = append(rawRates, contend(ctx, b, raw))
		rates = append(rates, contend(ctx, b, mine))
	}
	slices.Sort(rates)
	slices.Sort(rawRates)
	b.ReportMetric(rawRates[len(rawRates)/2], "raw-locks/s")
	b.ReportMetric(rates[len(rates)/2], "holdfast-locks/s")
	b.ReportMetric(rates[len(rates)/2]/rawRates[len(rawRates)/2], "ratio")
	b.ReportMetric(0, "ns/op")
}

// contend returns how many locks a second there were.
func contend(ctx context.Context, b *testing.B, all []func(context.Context, func()) error) float64 {
	ctx, cancel := context.WithTimeout(ctx, time.Second/5)
	defer cancel()
	var mu sync.Mutex
	inside, locks := 0, 0
	var wg sync.WaitGroup
	began := time.Now()
	for _, one := range all {
		wg.Go(func() {
			for ctx.Err() == nil {
				err := one(context.Background(), func() {
					mu.Lock()
					defer mu.Unlock()
					if locks++; inside != 0 {
						b.Error("two at once")
					}
				})
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	return float64(locks) / time.Since(began).Seconds()
}

func median(d []time.Duration) time.Duration {
	slices.Sort(d)
	return d[len(d)/2]
}
