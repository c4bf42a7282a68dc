package memlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// Strangers contend for a few keys over Lockers that are cut off, slowed down, closed
// and lied to at random: no key is ever held by two of them, no token comes twice, and
// nothing is left behind. A seed that fails can be run alone, as -run 'TestTorture/7$'.
func TestTorture(t *testing.T) {
	seeds := 60
	if testing.Short() {
		seeds = 15
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { newTorture(t, uint64(seed)).run() })
		})
	}
}

const (
	tortureTTL  = 3 * time.Second
	tortureKeys = 3
	strangers   = 12
	torments    = 60
)

// torture is one server, and all who ask it.
type torture struct {
	t      *testing.T
	seed   uint64
	rng    *rand.Rand // of the tormentor
	server *memlock.Server
	revoke bool // locks are taken away, and their holders learn of it later
	reopen bool // Lockers are closed
	stop   chan struct{}

	mu      sync.Mutex
	lockers [4]lock.Locker
	held    map[string][]*holder
	last    map[string]lock.Token // the greatest that was seen
}

// holder is a lock that a stranger relies on.
type holder struct {
	lock.Handle
	shared bool
}

func newTorture(t *testing.T, seed uint64) *torture {
	tt := &torture{
		t: t, seed: seed, stop: make(chan struct{}),
		held: make(map[string][]*holder), last: make(map[string]lock.Token),
	}
	tt.rng = tt.dice(0)
	tt.server = memlock.NewServer(modes[tt.rng.IntN(len(modes))].opts...)
	tt.revoke, tt.reopen = tt.rng.IntN(3) == 0, tt.rng.IntN(2) == 0
	if tt.rng.IntN(2) == 0 {
		tt.server.Fail(tt.failSometimes())
	}
	for i := range tt.lockers {
		tt.lockers[i] = tt.open()
	}
	return tt
}

// dice returns the source of chance of one of those who take part.
func (tt *torture) dice(who int) *rand.Rand { return rand.New(rand.NewPCG(tt.seed, uint64(who))) }

// upTo returns a time below d.
func upTo(d time.Duration, rng *rand.Rand) time.Duration { return time.Duration(rng.Int64N(int64(d))) }

func (tt *torture) errorf(format string, args ...any) {
	tt.t.Helper()
	tt.t.Errorf("seed %d: "+format, append([]any{tt.seed}, args...)...)
}

func (tt *torture) failSometimes() func(memlock.Op) error {
	var mu sync.Mutex
	rng := tt.dice(strangers + 1)
	return func(memlock.Op) error {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(6) == 0 {
			return errLost
		}
		return nil
	}
}

func (tt *torture) open() lock.Locker {
	l, err := tt.server.Locker(lock.Config{TTL: tortureTTL, Observe: func(context.Context, lock.Event) {}})
	if err != nil {
		tt.t.Fatal(err)
	}
	return l
}

func (tt *torture) close(l lock.Locker, most time.Duration) {
	began := time.Now()
	if err := l.Close(); err != nil {
		tt.errorf("Close: %v", err)
	}
	if took := time.Since(began); took > most {
		tt.errorf("Close took %v", took)
	}
}

func (tt *torture) locker(i int) lock.Locker {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	return tt.lockers[i]
}

func (tt *torture) run() {
	var wg sync.WaitGroup
	for who := range strangers {
		wg.Go(func() { tt.live(tt.dice(who + 1)) })
	}
	tt.torment()
	close(tt.stop)
	wg.Wait()
	time.Sleep(10 * tortureTTL)
	tt.checkResidue()
	time.Sleep(time.Second)
	for _, l := range tt.lockers {
		tt.close(l, 100*time.Millisecond)
	}
}

// torment injects faults, and mends them all in the end.
func (tt *torture) torment() {
	var heals []func()
	heal := func() {
		for _, heal := range heals {
			heal()
		}
		heals = nil
	}
	for range torments {
		time.Sleep(upTo(tortureTTL, tt.rng))
		i := tt.rng.IntN(len(tt.lockers))
		switch tt.rng.IntN(6) {
		case 0, 1:
			heals = append(heals, tt.server.Stall(tt.locker(i)))
		case 2:
			heals = append(heals, tt.server.Slow(tt.locker(i), upTo(2*tortureTTL, tt.rng)))
		case 3:
			if tt.revoke {
				tt.server.Revoke(tt.key(tt.rng))
			}
		case 4:
			if tt.reopen {
				tt.replace(i)
			}
		case 5:
			heal()
		}
	}
	tt.server.Fail(nil)
	heal()
}

// replace closes a Locker under the hands of those who use it.
func (tt *torture) replace(i int) {
	tt.mu.Lock()
	old := tt.lockers[i]
	tt.lockers[i] = tt.open()
	tt.mu.Unlock()
	tt.close(old, 2*time.Second)
}

func (tt *torture) key(rng *rand.Rand) string { return fmt.Sprint("k", rng.IntN(tortureKeys)) }

// live is the life of a stranger.
func (tt *torture) live(rng *rand.Rand) {
	for {
		select {
		case <-tt.stop:
			return
		default:
		}
		if h := tt.acquire(rng); h != nil {
			tt.hold(h, rng)
			tt.release(h, rng)
		} else {
			time.Sleep(upTo(tortureTTL/10, rng))
		}
	}
}

// acquire tries or waits for some key, in some way.
func (tt *torture) acquire(rng *rand.Rand) *holder {
	l, key, shared := tt.locker(rng.IntN(len(tt.lockers))), tt.key(rng), rng.IntN(3) == 0
	var opts []lock.Option
	if shared {
		opts = append(opts, lock.Shared())
	}
	if rng.IntN(3) == 0 {
		opts = append(opts, lock.Margin(upTo(tortureTTL/2, rng)))
	}
	if rng.IntN(4) == 0 {
		opts = append(opts, lock.MaxHold(1+upTo(2*tortureTTL, rng)))
	}
	acquire := l.Acquire
	if rng.IntN(2) == 0 {
		acquire = l.TryAcquire
	}
	ctx, cancel := context.WithTimeout(tt.t.Context(), upTo(3*tortureTTL, rng))
	defer cancel()
	tt.mu.Lock()
	last := tt.last[key]
	tt.mu.Unlock()
	h, err := acquire(ctx, key, opts...)
	if err != nil {
		if errors.Is(err, lock.ErrHeld) && errors.Is(err, lock.ErrUnavailable) {
			tt.errorf("held and unavailable: %v", err)
		}
		return nil
	}
	me := &holder{h, shared}
	tt.enter(me, last)
	return me
}

// enter checks a new holder against those there are, and its token against the last
// one that was seen before it was asked for.
func (tt *torture) enter(me *holder, last lock.Token) {
	key := me.Key()
	tt.mu.Lock()
	defer tt.mu.Unlock()
	token, _ := me.Token()
	if token <= last {
		tt.errorf("%s: token %d after %d", key, token, last)
	}
	tt.last[key] = max(tt.last[key], token)
	for _, other := range tt.held[key] {
		if me.shared && other.shared || tt.revoke || me.Err() != nil || other.Err() != nil {
			continue
		}
		theirs, _ := other.Token()
		tt.errorf("%s is held with the token %d for %v more and with the token %d for %v more",
			key, theirs, other.Valid(), token, me.Valid())
	}
	tt.held[key] = append(tt.held[key], me)
}

// hold holds for a while, or until the lock is lost.
func (tt *torture) hold(h *holder, rng *rand.Rand) {
	select {
	case <-h.Lost():
		if h.Err() == nil || h.Valid() != 0 {
			tt.errorf("%s: Lost is closed, Err %v, Valid %v", h.Key(), h.Err(), h.Valid())
		}
	case <-time.After(upTo(2*tortureTTL, rng)):
		if valid := h.Valid(); valid == 0 && h.Err() == nil {
			tt.errorf("%s: Valid %v, and no error", h.Key(), valid)
		}
	}
}

// release releases what h holds, now or much later.
func (tt *torture) release(h *holder, rng *rand.Rand) {
	tt.leave(h)
	if rng.IntN(5) == 0 {
		time.AfterFunc(4*tortureTTL, func() { _ = h.Release(tt.t.Context()) })
		return
	}
	ctx, cancel := context.WithTimeout(tt.t.Context(), upTo(tortureTTL, rng))
	defer cancel()
	before := h.Err()
	if err := h.Release(ctx); before != nil && err == nil {
		token, _ := h.Token()
		tt.errorf("%s: Release of the token %d says nil after %v", h.Key(), token, before)
	}
}

// leave takes h off the books: it does not rely on its lock from here on.
func (tt *torture) leave(h *holder) {
	tt.mu.Lock()
	defer tt.mu.Unlock()
	tt.held[h.Key()] = slices.DeleteFunc(tt.held[h.Key()], func(other *holder) bool { return other == h })
}

// checkResidue checks that every Locker gets every key, now that all is well.
func (tt *torture) checkResidue() {
	for i := range tortureKeys {
		key := fmt.Sprint("k", i)
		for _, l := range tt.lockers {
			for _, opts := range [][]lock.Option{nil, {lock.Shared()}} {
				h, err := l.TryAcquire(tt.t.Context(), key, opts...)
				if err != nil {
					info, _ := l.Inspect(tt.t.Context(), key)
					tt.errorf("left behind: %v; %+v", err, info)
					continue
				}
				if err := h.Release(tt.t.Context()); err != nil {
					tt.errorf("Release: %v", err)
				}
			}
		}
	}
}
