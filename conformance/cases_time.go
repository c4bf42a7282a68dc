package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// longTTLs are in the range that every backend may take, at the edges of what servers
// count in: milliseconds of 32 bits, with and without a sign.
var longTTLs = []time.Duration{
	math.MaxInt32 * time.Millisecond,
	(math.MaxInt32 + 1) * time.Millisecond,
	25 * 24 * time.Hour,
	math.MaxUint32 * time.Millisecond,
	(math.MaxUint32 + 1) * time.Millisecond,
	lock.MaxTTL,
}

// longTimes are waits and holds that nobody sees the end of.
var longTimes = slices.Concat(longTTLs, []time.Duration{10000 * time.Hour, math.MaxInt64})

var timeCases = []Case{
	{"LongTTL", "a long TTL is kept or refused with ErrInvalid, and never cut: what is held was not over before it began", []fault{openConfig}, func(k *check) {
		b := k.open()
		for _, ttl := range longTTLs {
			h, ok := k.acquireFor(ttl)
			if !ok {
				continue
			}
			k.taken(b, k.key)
			k.release(h)
			k.release(k.free(b, k.key))
		}
	}},
	{"ServerKeepsTTL", "the server keeps a lock for as long as its handle relies on it, and no longer than the TTL", []fault{openConfig, left}, func(k *check) {
		for _, ttl := range longTTLs {
			if h, ok := k.acquireFor(ttl); ok {
				k.keptFor(h, ttl)
				k.release(h)
			}
		}
		h := k.acquire(k.open(), k.key)
		k.during(k.ttl*3/2, func() { k.keptFor(h, k.ttl) })
		k.release(h)
	}},
	{"ShortWait", "a wait too short for an answer ends at once: 'held' or 'could not be asked', never both, and nothing is left", nil, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		k.release(k.acquire(b, k.newKey("warm-up")))
		for _, wait := range []time.Duration{1, time.Microsecond, 999 * time.Microsecond, time.Millisecond} {
			h := k.acquire(a, k.key)
			for range 10 {
				for _, l := range []lock.Locker{b, a} { // at the server, and inside the Locker
					if got := k.shortWait(l, wait); got != nil {
						k.broken("Acquire with Wait(%v) got a key that is held", wait)
					}
				}
			}
			k.held(h)
			k.release(h)
			if h := k.shortWait(b, wait); h != nil {
				k.held(h)
				k.release(h)
			}
			k.release(k.take(c, k.key, k.ttl*3/4))
			k.awaitNobody(c, k.key)
		}
	}},
	{"LongWait", "a wait or a MaxHold of any length is not cut", nil, func(k *check) {
		a, b := k.open(), k.open()
		var held []lock.Handle
		var waiting []<-chan acquired
		wait := func(ctx context.Context, opts ...lock.Option) {
			key := fmt.Sprint(k.key, "-", len(held))
			held = append(held, k.acquire(a, key))
			waiting = append(waiting, k.background(ctx, b, key, opts...))
		}
		for _, d := range longTimes {
			wait(k.ctx, lock.Wait(d), lock.MaxHold(d))
			ctx, cancel := context.WithDeadline(k.ctx, time.Now().Add(d))
			defer cancel()
			wait(ctx)
		}
		k.pause(k.ttl / 2)
		for i, h := range held {
			if len(waiting[i]) > 0 {
				k.broken("a long wait for a held key ended at once: %v", (<-waiting[i]).err)
			}
			k.release(h)
		}
		for _, w := range waiting {
			got := k.await(w, k.ttl+k.slack)
			if got.err != nil {
				k.broken("Acquire with a long wait: %v", got.err)
			}
			k.held(got.h)
			k.release(got.h)
		}
	}},
}

// acquireFor takes the key with a Locker of that TTL. false: the backend is narrower,
// and said so.
func (k *check) acquireFor(ttl time.Duration) (lock.Handle, bool) {
	k.Helper()
	l, err := k.h.OpenConfig(k.T, lock.Config{TTL: ttl})
	if errors.Is(err, lock.ErrInvalid) {
		return nil, false
	}
	if err != nil {
		k.broken("opening with a TTL of %v: error %v, want nil or ErrInvalid", ttl, err)
	}
	k.adopt(l)
	h := k.acquire(l, k.key)
	if err := h.Err(); err != nil {
		k.broken("with a TTL of %v: %v", ttl, err)
	}
	if v := h.Valid(); v < ttl/3 || v > max(ttl, k.h.Term) {
		k.broken("Valid() = %v with a TTL of %v", v, ttl)
	}
	return h, true
}

// keptFor compares what the server says with what the handle does.
func (k *check) keptFor(h lock.Handle, ttl time.Duration) {
	k.Helper()
	began := time.Now()
	valid := h.Valid()
	left := k.h.Left(k.T, k.key)
	switch took := time.Since(began); {
	case left <= 0:
		k.broken("the server has a lock with no end, or none (%v), with a TTL of %v", left, ttl)
	case left < valid-took:
		k.broken("the server keeps the lock for another %v, and Valid() = %v with a TTL of %v", left, valid, ttl)
	case left > ttl+k.slack:
		k.broken("the server keeps the lock for another %v with a TTL of %v", left, ttl)
	}
}

// shortWait acquires with a wait that may be over before the first answer.
func (k *check) shortWait(l lock.Locker, wait time.Duration) lock.Handle {
	k.Helper()
	began := time.Now()
	h, err := k.tryAcquireWith(k.ctx, l, k.key, true, lock.Wait(wait))
	if took := time.Since(began); took > wait+k.slack {
		k.broken("Acquire with Wait(%v) took %v", wait, took)
	}
	if err == nil {
		return h
	}
	held, unavailable := errors.Is(err, lock.ErrHeld), errors.Is(err, lock.ErrUnavailable)
	if held == unavailable || errors.Is(err, context.DeadlineExceeded) {
		k.broken("Acquire with Wait(%v): error %q, want one that matches ErrHeld or ErrUnavailable alone", wait, err)
	}
	return nil
}
