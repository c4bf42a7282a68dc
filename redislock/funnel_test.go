package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// A crowd needs neither a connection each, nor that the server knows the scripts.
func TestCrowdSharesConnections(t *testing.T) {
	t.Parallel()
	const crowd, rounds = 100, 20
	s := testserver.Redis(t)
	c := dial(t, s.Addr(), func(o *redis.Options) { o.PoolSize = crowd })
	admin := dial(t, s.Addr())
	l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}})
	var all sync.WaitGroup
	for i := range crowd {
		all.Go(func() {
			var last lock.Token
			for range rounds {
				h, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i))
				if err != nil {
					t.Error(err)
					return
				}
				token, _ := h.Token()
				if token <= last {
					t.Errorf("token %d after %d: it is another's answer", token, last)
				}
				last = token
				info, err := l.Inspect(t.Context(), fmt.Sprint("k", i))
				if err != nil || len(info.Holders) != 1 || info.Holders[0].Token != token {
					t.Errorf("Inspect: %+v, %v; want token %d", info, err, token)
				}
				if i == 0 {
					do(t, admin, "script", "flush")
				}
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	// A lost race for a connection opens one more. Without the crowd sharing, it is one
	// for each of it.
	if n := c.PoolStats().TotalConns; n > crowd/4 {
		t.Errorf("%d connections for %d callers", n, crowd)
	}
}

// A request that waits for its turn to be sent, and whose caller gives up, is not sent.
func TestGivenUpBeforeItIsSent(t *testing.T) {
	t.Parallel()
	p, c, direct := proxied(t)
	d := driveOn(t, c)
	release(t, acquire(t, d, ask("warm"))) // the scripts are known
	p.Stall()
	do(t, direct, "config", "resetstat")
	var sent, kept sync.WaitGroup
	for i := range redislock.MostUnderWay {
		sent.Go(func() { _, _ = d.Acquire(t.Context(), ask(fmt.Sprint("sent", i))) })
		eventually(t, "the next request is under way", func() bool { return redislock.UnderWay(d) == i+1 && redislock.Queued(d) == 0 })
	}
	ctx, cancel := context.WithCancel(t.Context())
	for i := range 10 {
		kept.Go(func() {
			if _, err := d.Acquire(ctx, ask(fmt.Sprint("kept", i))); !errors.Is(err, context.Canceled) {
				t.Errorf("Acquire: %v, want that it was cancelled", err)
			}
		})
	}
	eventually(t, "the others are queued", func() bool { return redislock.Queued(d) == 10 })
	cancel()
	kept.Wait() // at once, although the server is mute
	p.Heal()
	sent.Wait()
	if keys := do(t, direct, "keys", "*kept*").([]any); len(keys) != 0 {
		t.Errorf("of what was given up there is %v", keys)
	}
	if keys := do(t, direct, "keys", "holdfast:{sent?}").([]any); len(keys) != redislock.MostUnderWay {
		t.Errorf("of %d that were sent there are %v", redislock.MostUnderWay, keys)
	}
}

// What the server refuses it refuses each.
func TestCrowdIsRefused(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	c, admin := dial(t, s.Addr()), dial(t, s.Addr())
	l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}})
	do(t, admin, "set", "holdfast:{k7}", "theirs")
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			_, err := l.TryAcquire(t.Context(), fmt.Sprint("k", i))
			if foreign := err != nil && strings.Contains(err.Error(), "not Holdfast's"); foreign != (i == 7) {
				t.Errorf("k%d: %v", i, err)
			}
		})
	}
	all.Wait()
	do(t, admin, "replicaof", "127.0.0.1", "1")
	for i := range 50 {
		all.Go(func() {
			_, err := l.TryAcquire(t.Context(), fmt.Sprint("other", i))
			matches(t, "TryAcquire at a replica", err, lock.ErrUnavailable)
			if !strings.Contains(fmt.Sprint(err), "READONLY") {
				t.Errorf("other%d: %v, want READONLY", i, err)
			}
		})
	}
	all.Wait()
	do(t, admin, "replicaof", "no", "one")
	h, err := l.TryAcquire(t.Context(), "other1")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
