package conformance

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/holdfast-go/holdfast/lock"
)

var loadCases = []Case{
	{"RenewalIsNotStarved", "however many acquisitions wait, what is held is renewed", nil, func(k *check) {
		a, b := k.open(), k.open()
		base := k.newKey("starve")
		ctx, cancel := context.WithCancel(k.ctx)
		var wg sync.WaitGroup
		var held []lock.Handle
		for i := range 10 {
			held = append(held, k.acquire(a, fmt.Sprint(base, "-held-", i)))
			k.acquire(b, fmt.Sprint(base, "-taken-", i))
		}
		for i := range 200 {
			wg.Go(func() {
				if h, err := a.Acquire(ctx, fmt.Sprint(base, "-taken-", i%10)); err == nil {
					_ = h.Release(k.ctx)
				}
			})
		}
		k.during(2*k.ttl, func() {
			for _, h := range held {
				k.held(h)
			}
		})
		cancel()
		k.within(k.slack, "the end of 200 cancelled waits", wg.Wait)
		for _, h := range held {
			k.release(h)
		}
	}},
	{"FailedTriesLeaveNothing", "tries that fail leave nothing: not for the next one, and not for anybody who waits", nil, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		h := k.acquire(a, k.key)
		for range 200 {
			if _, err := b.TryAcquire(k.ctx, k.key); !errors.Is(err, lock.ErrHeld) {
				k.broken("TryAcquire of a held key: %v, want ErrHeld", err)
			}
		}
		k.held(h)
		k.release(h)
		k.release(k.free(c, k.key))
		k.release(k.free(b, k.key))
	}},
	{"ManyLocalWaiters", "waiters inside one Locker are served one after the other", nil, func(k *check) {
		l := k.open()
		h := k.acquire(l, k.key)
		var waiting []<-chan acquired
		for range 20 {
			waiting = append(waiting, k.background(k.ctx, l, k.key))
		}
		k.pause(k.ttl / 20)
		k.release(h)
		served := make(chan error, len(waiting))
		for _, w := range waiting {
			go func() {
				got := <-w
				if got.err == nil {
					got.err = got.h.Release(k.ctx)
				}
				served <- got.err
			}()
		}
		k.within(k.longest(), "the service of 20 local waiters", func() {
			for range waiting {
				if err := <-served; err != nil {
					k.Errorf("a local waiter: %v", err)
				}
			}
		})
	}},
}
