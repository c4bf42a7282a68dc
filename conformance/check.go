package conformance

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// check is one run of a case: short words for what all cases do. Every call into
// the Locker is bounded, so that one that hangs fails its case and not the run.
type check struct {
	*testing.T
	h      *Harness
	clause string
	ttl    time.Duration
	term   time.Duration // the longest that Valid may promise
	slack  time.Duration // what a bound allows beyond what is promised
	key    string
	ctx    context.Context

	mu      sync.Mutex
	lockers []lock.Locker
}

func newCheck(t *testing.T, h *Harness, c Case) *check {
	k := &check{T: t, h: h, clause: c.Clause, ttl: h.TTL, term: cmp.Or(h.Term, h.TTL), slack: h.Slack, ctx: t.Context()}
	if k.slack == 0 {
		k.slack = 2 * time.Second
	}
	k.key = k.newKey(c.Name)
	t.Cleanup(k.closeAll)
	return k
}

// newKey returns a key that no other run has used: servers may outlive a run.
func (k *check) newKey(prefix string) string {
	return prefix + "-" + strings.ToLower(rand.Text()[:10])
}

// broken fails the case, quoting its clause.
func (k *check) broken(format string, args ...any) {
	k.Helper()
	k.Fatalf("%s\nbroken clause: %s", fmt.Sprintf(format, args...), k.clause)
}

// open returns a new Locker.
func (k *check) open() lock.Locker {
	k.Helper()
	l := k.h.Open(k.T)
	k.adopt(l)
	return l
}

func (k *check) openConfig(cfg lock.Config) lock.Locker {
	k.Helper()
	l, err := k.h.OpenConfig(k.T, cfg)
	if err != nil {
		k.Fatalf("OpenConfig: %v", err)
	}
	k.adopt(l)
	return l
}

func (k *check) adopt(l lock.Locker) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lockers = append(k.lockers, l)
}

func (k *check) closeAll() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.lockers {
		done := make(chan struct{})
		go func() { defer close(done); _ = l.Close() }()
		select {
		case <-done:
		case <-time.After(2*time.Second + k.slack):
			k.Errorf("Close did not return")
		}
	}
}

// within runs fn and fails the case if it has not returned in time. It returns how
// long fn took.
func (k *check) within(limit time.Duration, what string, fn func()) time.Duration {
	k.Helper()
	began := time.Now()
	done := make(chan struct{})
	go func() { defer close(done); fn() }()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		k.broken("%s did not return within %v", what, limit)
	}
	return time.Since(began)
}

// longest is longer than any call that a case makes may take.
func (k *check) longest() time.Duration { return 10*time.Second + 5*k.ttl + k.slack }

func (k *check) acquire(l lock.Locker, key string, opts ...lock.Option) lock.Handle {
	k.Helper()
	h, err := k.tryAcquireWith(k.ctx, l, key, true, opts...)
	if err != nil {
		k.broken("Acquire(%q): %v", key, err)
	}
	return h
}

// take acquires within d, and fails the case if it cannot.
func (k *check) take(l lock.Locker, key string, d time.Duration, opts ...lock.Option) lock.Handle {
	k.Helper()
	return k.acquire(l, key, append([]lock.Option{lock.Wait(d)}, opts...)...)
}

func (k *check) try(l lock.Locker, key string, opts ...lock.Option) (lock.Handle, error) {
	k.Helper()
	return k.tryAcquireWith(k.ctx, l, key, false, opts...)
}

func (k *check) tryAcquireWith(ctx context.Context, l lock.Locker, key string, wait bool, opts ...lock.Option) (h lock.Handle, err error) {
	k.Helper()
	k.within(k.longest(), "the acquisition", func() {
		if wait {
			h, err = l.Acquire(ctx, key, opts...)
		} else {
			h, err = l.TryAcquire(ctx, key, opts...)
		}
	})
	if (h == nil) == (err == nil) {
		k.broken("an acquisition returned handle %v and error %v; want one of them", h, err)
	}
	return h, err
}

// free checks that key can be taken at once, and returns the handle.
func (k *check) free(l lock.Locker, key string, opts ...lock.Option) lock.Handle {
	k.Helper()
	h, err := k.try(l, key, opts...)
	if err != nil {
		k.broken("the key should be free, and TryAcquire says: %v", err)
	}
	return h
}

// taken checks that key cannot be taken, and that the error says so.
func (k *check) taken(l lock.Locker, key string, opts ...lock.Option) {
	k.Helper()
	h, err := k.try(l, key, opts...)
	if err == nil {
		k.broken("the key should be held, and TryAcquire got it (token %v)", tokenOf(h))
	}
	if !errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) {
		k.broken("TryAcquire of a held key: error %q, want one that matches ErrHeld alone", err)
	}
}

func (k *check) release(h lock.Handle) {
	k.Helper()
	if err := k.releaseWith(k.ctx, h); err != nil {
		k.broken("Release: %v", err)
	}
}

func (k *check) releaseWith(ctx context.Context, h lock.Handle) (err error) {
	k.Helper()
	k.within(k.longest(), "Release", func() { err = h.Release(ctx) })
	return err
}

// held checks that h is held in every respect.
func (k *check) held(h lock.Handle) {
	k.Helper()
	if err := h.Err(); err != nil {
		k.broken("the lock should be held, and Err says: %v", err)
	}
	if isLost(h) {
		k.broken("the lock should be held, and Lost is closed")
	}
	if v, most := h.Valid(), k.term; v <= 0 || v > most {
		k.broken("Valid() = %v while held, want above 0 and at most %v", v, most)
	}
}

// lost checks that h is lost in every respect, with cause if it is not nil.
func (k *check) lost(h lock.Handle, cause error) {
	k.Helper()
	err := h.Err()
	if !errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrReleased) {
		k.broken("the lock should be lost, and Err says: %v", err)
	}
	if cause != nil && !errors.Is(err, cause) {
		k.broken("the loss should be because of %q, and Err says: %v", cause, err)
	}
	if v := h.Valid(); v != 0 {
		k.broken("Valid() = %v after the loss, want 0", v)
	}
	if !isLost(h) {
		k.broken("Err says that the lock is lost, and Lost is open")
	}
}

// awaitLoss waits for Lost and fails the case if it does not close in time. It
// returns how long it took.
func (k *check) awaitLoss(h lock.Handle, limit time.Duration) time.Duration {
	k.Helper()
	began := time.Now()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-h.Lost():
	case <-timer.C:
		k.broken("Lost was not closed within %v", limit)
	}
	return time.Since(began)
}

// awaitRenewal returns right after h was renewed.
func (k *check) awaitRenewal(h lock.Handle) {
	k.Helper()
	before := h.Valid()
	for end := time.Now().Add(k.ttl + k.slack); ; k.pause(k.ttl / 200) {
		now := h.Valid()
		if now > before {
			return
		}
		if before = now; time.Now().After(end) {
			k.broken("nothing was renewed within %v", k.ttl+k.slack)
		}
	}
}

// mostValid returns the greatest Valid of h, from now until it was renewed some times.
func (k *check) mostValid(h lock.Handle) time.Duration {
	k.Helper()
	most := h.Valid()
	for end := time.Now().Add(k.ttl * 3 / 2); time.Now().Before(end); k.pause(k.ttl / 200) {
		most = max(most, h.Valid())
	}
	return most
}

// background runs an Acquire beside the case.
func (k *check) background(ctx context.Context, l lock.Locker, key string, opts ...lock.Option) <-chan acquired {
	return k.backgroundThen(ctx, l, key, func() {}, opts...)
}

// backgroundThen calls then as soon as the Acquire has returned.
func (k *check) backgroundThen(ctx context.Context, l lock.Locker, key string, then func(), opts ...lock.Option) <-chan acquired {
	ch := make(chan acquired, 1)
	go func() {
		h, err := l.Acquire(ctx, key, opts...)
		at := time.Now()
		then()
		ch <- acquired{h, err, at}
	}()
	return ch
}

type acquired struct {
	h   lock.Handle
	err error
	at  time.Time
}

func (k *check) await(ch <-chan acquired, limit time.Duration) acquired {
	k.Helper()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case a := <-ch:
		return a
	case <-timer.C:
		k.broken("a waiting Acquire did not return within %v", limit)
		return acquired{}
	}
}

// pause lets time pass: there is nothing to wait for when nothing must happen.
func (k *check) pause(d time.Duration) {
	if d <= 0 { // in a bubble, several timers that are over at once crash Go's race detector
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-k.ctx.Done():
	}
}

// awaitNobody waits until, as far as l can tell, nobody holds key or waits for it: what
// was given up is taken away in the background, sooner than any lease ends by itself.
func (k *check) awaitNobody(l lock.Locker, key string) {
	k.Helper()
	for end := time.Now().Add(k.ttl * 2 / 3); ; k.pause(k.ttl / 200) {
		info := k.inspect(l, key)
		if len(info.Holders) == 0 && info.Waiters == 0 {
			return
		}
		if time.Now().After(end) {
			k.broken("an orphan is left: Inspect shows %+v", info)
		}
	}
}

// during calls fn again and again while d passes.
func (k *check) during(d time.Duration, fn func()) {
	k.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		fn()
		k.pause(k.ttl / 50)
	}
}

func isLost(h lock.Handle) bool {
	select {
	case <-h.Lost():
		return true
	default:
		return false
	}
}

func tokenOf(h lock.Handle) lock.Token {
	token, _ := h.Token()
	return token
}

// cancelled returns a context that is done.
func cancelled(parent context.Context) context.Context {
	ctx, cancel := context.WithCancel(parent)
	cancel()
	return ctx
}
