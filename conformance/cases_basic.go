package conformance

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

var basicCases = []Case{
	{"Features", "Features are exactly what the backend promises", nil, func(k *check) {
		if got := k.open().Features(); got != k.h.Promises {
			k.broken("Features() = %q, want %q", got, k.h.Promises)
		}
	}},
	{"HoldAndRelease", "a key has at most one holder, and is free once it has released", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		if h.Key() != k.key {
			k.broken("Key() = %q, want %q", h.Key(), k.key)
		}
		k.held(h)
		k.taken(b, k.key)
		k.release(h)
		k.release(k.free(b, k.key))
		k.release(k.free(a, k.key))
	}},
	{"RenewedUntilReleased", "a lock is renewed for as long as it is held, whatever its TTL", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		k.during(k.ttl*5/2, func() {
			k.held(h)
			k.taken(b, k.key)
		})
		k.release(h)
		k.release(k.free(b, k.key))
	}},
	{"ExclusionInOneLocker", "goroutines of one Locker exclude each other as strangers do", nil, func(k *check) {
		l := k.open()
		h := k.acquire(l, k.key)
		k.taken(l, k.key)
		k.release(h)
		k.contend(20, 5, func(int) lock.Locker { return l })
	}},
	{"ExclusionBetweenLockers", "two Lockers never hold a key at once", nil, func(k *check) {
		lockers := []lock.Locker{k.open(), k.open(), k.open(), k.open()}
		k.contend(12, 5, func(i int) lock.Locker { return lockers[i%len(lockers)] })
	}},
	{"SecondReleaseHarmsNobody", "a handle that was released never touches the next holder", nil, func(k *check) {
		l, other := k.open(), k.open()
		first := k.acquire(l, k.key)
		k.release(first)
		second := k.acquire(l, k.key)
		k.release(first)
		k.held(second)
		k.taken(other, k.key)
		k.release(second)
	}},
}

// contend has goroutines take the key in turns, and checks that each is alone.
func (k *check) contend(goroutines, rounds int, locker func(i int) lock.Locker) {
	var (
		inside  atomic.Int32
		wg      sync.WaitGroup
		failed  = make(chan error, goroutines)
		ctx, no = context.WithTimeout(k.ctx, time.Minute+20*k.ttl)
	)
	defer no()
	for i := range goroutines {
		l := locker(i)
		wg.Go(func() {
			for range rounds {
				if err := k.turn(ctx, l, &inside); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-failed:
		k.broken("%v", err)
	default:
	}
}

var errTwoInside = errors.New("two holders at once")

func (k *check) turn(ctx context.Context, l lock.Locker, inside *atomic.Int32) error {
	h, err := l.Acquire(ctx, k.key)
	if err != nil {
		return err
	}
	alone := inside.Add(1) == 1
	k.pause(time.Millisecond)
	alone = alone && inside.Load() == 1
	inside.Add(-1)
	if err := h.Release(ctx); err != nil {
		return err
	}
	if !alone {
		return errTwoInside
	}
	return nil
}
