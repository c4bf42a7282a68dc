package redislock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// refusal is a state in which a server refuses to write.
type refusal struct {
	text       string
	begin, end func(*testing.T, *redis.Client)
	held       bool // what is held can be renewed, and released
}

var refusals = []refusal{
	{ // a replica, as after a failover
		text:  "READONLY",
		begin: func(t *testing.T, c *redis.Client) { do(t, c, "replicaof", "127.0.0.1", 1) },
		end:   func(t *testing.T, c *redis.Client) { do(t, c, "replicaof", "no", "one") },
	},
	{
		text: "OOM",
		begin: func(t *testing.T, c *redis.Client) {
			for i := range 400 {
				do(t, c, "set", fmt.Sprint("fill-", i), strings.Repeat("x", 10_000))
			}
			do(t, c, "config", "set", "maxmemory", "2mb")
		},
		end:  func(t *testing.T, c *redis.Client) { do(t, c, "config", "set", "maxmemory", 0) },
		held: true,
	},
	{
		text:  "NOREPLICAS",
		begin: func(t *testing.T, c *redis.Client) { do(t, c, "config", "set", "min-replicas-to-write", 1) },
		end:   func(t *testing.T, c *redis.Client) { do(t, c, "config", "set", "min-replicas-to-write", 0) },
	},
	{ // it cannot write its snapshots
		text: "MISCONF",
		begin: func(t *testing.T, c *redis.Client) {
			dir, err := c.ConfigGet(t.Context(), "dir").Result()
			if err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(dir["dir"]); err != nil {
				t.Fatal(err)
			}
			do(t, c, "config", "set", "save", "3600 1")
			do(t, c, "set", "x", "1")
			do(t, c, "bgsave")
			eventually(t, "the snapshot has failed", func() bool {
				info, err := c.Info(t.Context(), "persistence").Result()
				return err == nil && strings.Contains(info, "rdb_last_bgsave_status:err")
			})
		},
		end: func(t *testing.T, c *redis.Client) { do(t, c, "config", "set", "stop-writes-on-bgsave-error", "no") },
	},
}

// R6: the server refuses to write. That is not "held", is asked again with measure, and
// what it has to do with is told.
func TestServerRefusesWrites(t *testing.T) {
	t.Parallel()
	for _, r := range refusals {
		t.Run(r.text, func(t *testing.T) {
			t.Parallel()
			r.prove(t)
		})
	}
}

func (r refusal) prove(t *testing.T) {
	s := testserver.Redis(t)
	c := dial(t, s.Addr())
	l, other, third := caseLocker(t, s.Addr()), caseLocker(t, s.Addr()), caseLocker(t, s.Addr())
	held, freed, taken := try(t, l, "held"), try(t, l, "freed"), try(t, other, "taken")
	waiting := wait(t, l, "taken")
	quitting := wait(t, third, "taken", lock.Wait(caseTTL/2))
	queued(t, l, "taken", 2)

	began := time.Now()
	r.begin(t, c)
	lost := told(t, held)
	do(t, c, "config", "resetstat")
	r.proveRelease(t, freed)
	_, err := l.TryAcquire(t.Context(), "free")
	r.match(t, "TryAcquire", err)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = l.Acquire(ctx, "free")
	r.match(t, "Acquire with a context", err)
	matches(t, "Acquire with a context", err, context.DeadlineExceeded)
	if got := await(t, "Acquire of what is held", wait(t, other, "held", lock.Wait(time.Second))); r.held {
		matches(t, "Acquire of what is held", got.err, lock.ErrHeld)
	}
	got := await(t, "Acquire", wait(t, l, "free", lock.Wait(3*time.Second)))
	r.match(t, "Acquire", got.err)
	if got.took < 3*time.Second {
		t.Errorf("Acquire with Wait(3s) came back after %v", got.took)
	}
	tries := 0
	for _, command := range []string{"evalsha", "eval", "ping", "subscribe", "hello"} {
		tries += calls(t, c, command)
	}
	if most := int(100 * (time.Since(began) + time.Second).Seconds()); tries > most {
		t.Errorf("%d commands in %v, want at most %d", tries, time.Since(began), most)
	}
	got = await(t, "the end of a wait", quitting)
	isHeld, unknown := errors.Is(got.err, lock.ErrHeld), errors.Is(got.err, lock.ErrUnavailable)
	if isHeld == unknown || r.held && !isHeld {
		t.Errorf("a wait in the queue: %v, want ErrHeld, or ErrUnavailable if the holder is not sure any more", got.err)
	}
	if r.held { // it has left the queue, and the other is in its place
		queued(t, other, "taken", 1)
	}
	r.proveHeld(t, held, lost, began)
	select {
	case got := <-waiting:
		t.Errorf("a wait without a limit ended: %v", got.err)
	default:
	}

	_ = taken.Release(t.Context())
	r.end(t, c)
	if n := do(t, c, "exists", "holdfast:{free}", "holdfast:{free}:token"); n != int64(0) {
		t.Error("a refused acquisition left something")
	}
	letGo(t, granted(t, "the waiter, when it is over", waiting))
	for _, key := range []string{"free", "freed"} {
		letGo(t, granted(t, key, wait(t, other, key, lock.Wait(patience))))
	}
	queued(t, l, "taken", 0)
}

// match checks that err says what the server does.
func (r refusal) match(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || errors.Is(err, lock.ErrHeld) || !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), r.text) {
		t.Errorf("%s: %v, want ErrUnavailable alone, with %s", what, err, r.text)
	}
}

// proveRelease checks that a release that is refused is told, and goes on.
func (r refusal) proveRelease(t *testing.T, h lock.Handle) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := h.Release(ctx)
	if r.held {
		if err != nil {
			t.Errorf("Release: %v", err)
		}
		return
	}
	r.match(t, "Release", err)
}

// told says when h was lost.
func told(t *testing.T, h lock.Handle) <-chan time.Time {
	at := make(chan time.Time, 1)
	go func() {
		select {
		case <-h.Lost():
			at <- time.Now()
		case <-t.Context().Done():
		}
	}()
	return at
}

// proveHeld checks that a lock which cannot be renewed is lost when the TTL is over,
// not at the first refusal, and says why.
func (r refusal) proveHeld(t *testing.T, h lock.Handle, lost <-chan time.Time, began time.Time) {
	t.Helper()
	if r.held {
		if err := h.Err(); err != nil {
			t.Errorf("a lock that can be renewed: %v", err)
		}
		letGo(t, h)
		return
	}
	after := await(t, "the loss of a lock that cannot be renewed", lost).Sub(began)
	if after < caseTTL*2/5 || after > caseTTL+2*time.Second {
		t.Errorf("Lost closed %v after the lock could not be renewed any more, with a TTL of %v", after, caseTTL)
	}
	if err := h.Err(); !errors.Is(err, lock.ErrLost) || !strings.Contains(err.Error(), r.text) {
		t.Errorf("Err: %v, want ErrLost, with %s", err, r.text)
	}
}

// counter counts the requests of a client, whether it sends them or not.
type counter struct{ atomic.Int32 }

func (n *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (n *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error { n.Add(1); return next(ctx, cmd) }
}

func (n *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { n.Add(1); return next(ctx, cmds) }
}

// R6: the server is stopped. What waits is told so, also of a key that was held; it is
// asked again with measure; and when it is there again, all goes on.
func TestServerIsStopped(t *testing.T) {
	t.Parallel()
	s := testserver.Redis(t)
	c := dial(t, s.Addr(), func(o *redis.Options) { o.ContextTimeoutEnabled = true }) // or it is cloned, without hooks
	tries := new(counter)
	c.AddHook(tries)
	l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: caseTTL}})
	other := caseLocker(t, s.Addr())
	held := try(t, other, "taken")
	const limit = 2 * time.Second
	atServer, inside := wait(t, l, "taken", lock.Wait(limit)), wait(t, l, "taken", lock.Wait(limit))
	endless := wait(t, l, "taken")
	queued(t, other, "taken", 1)

	s.Stop()
	tries.Store(0)
	began := time.Now()
	_, err := l.TryAcquire(t.Context(), "k")
	isDown(t, "TryAcquire", err)
	got := await(t, "Acquire", wait(t, l, "k", lock.Wait(limit)))
	isDown(t, "Acquire", got.err)
	if got.took < limit || got.took > limit+5*time.Second {
		t.Errorf("Acquire with Wait(%v) came back after %v", limit, got.took)
	}
	for what, ch := range map[string]<-chan outcome{"the waiter in the queue": atServer, "one behind it": inside} {
		if got := await(t, what, ch); errors.Is(got.err, lock.ErrHeld) || !errors.Is(got.err, lock.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable alone", what, got.err)
		}
	}
	if n, most := int(tries.Load()), int(100*(time.Since(began)+time.Second).Seconds()); n < 3 || n > most {
		t.Errorf("the server was tried %d times in %v, want at most %d", n, time.Since(began), most)
	}
	await(t, "the loss of a lock that cannot be renewed", held.Lost())

	s.Start()
	letGo(t, granted(t, "the waiter, when the server is there again", endless))
	letGo(t, granted(t, "Acquire, when the server is there again", wait(t, l, "k", lock.Wait(patience))))
}

func isDown(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || errors.Is(err, lock.ErrHeld) || !errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "connect") {
		t.Errorf("%s: %v, want ErrUnavailable alone, with what the connection said", what, err)
	}
}
