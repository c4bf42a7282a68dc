package conformance

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

var releaseCases = []Case{
	{"ReleaseIsNoLoss", "Release never closes Lost; afterwards Err is ErrReleased and Valid is 0", nil, func(k *check) {
		l := k.open()
		h := k.acquire(l, k.key)
		early := h.Lost()
		k.release(h)
		k.during(k.ttl*3/2, func() {
			select {
			case <-early:
				k.broken("Lost was closed by Release")
			default:
			}
			if isLost(h) {
				k.broken("Lost was closed by Release")
			}
		})
		if err := h.Err(); !errors.Is(err, lock.ErrReleased) || errors.Is(err, lock.ErrLost) {
			k.broken("Err after Release: %v, want ErrReleased", err)
		}
		if v := h.Valid(); v != 0 {
			k.broken("Valid() = %v after Release, want 0", v)
		}
	}},
	{"ReleaseAgain", "Release may be called again and from many goroutines", nil, func(k *check) {
		l := k.open()
		h := k.acquire(l, k.key)
		errs := make([]error, 10)
		k.within(k.longest(), "Release by ten goroutines", func() {
			var wg sync.WaitGroup
			for i := range errs {
				wg.Go(func() { errs[i] = h.Release(k.ctx) })
			}
			wg.Wait()
		})
		for _, err := range append(errs, k.releaseWith(k.ctx, h)) {
			if err != nil {
				k.broken("one of several Releases: %v, want nil", err)
			}
		}
		k.release(k.free(l, k.key))
	}},
	{"ReleaseWithDeadContext", "Release works with a cancelled context", nil, func(k *check) {
		a, b := k.open(), k.open()
		ctx, cancel := context.WithTimeout(k.ctx, -time.Second)
		defer cancel()
		for _, dead := range []context.Context{cancelled(k.ctx), ctx} {
			h := k.acquire(a, k.key)
			if err := k.releaseWith(dead, h); errors.Is(err, lock.ErrLost) {
				k.broken("Release with a dead context: %v", err)
			}
			k.release(k.take(b, k.key, k.ttl/2))
		}
	}},
	{"ReleaseStopsRenewal", "Release ends the renewals first: nothing keeps or brings back what was released", []fault{openConfig}, func(k *check) {
		var log eventLog
		a, b := k.openConfig(lock.Config{Observe: log.observe}), k.open()
		for range 5 {
			h := k.acquire(a, k.key)
			k.pause(k.ttl * 2 / 5) // a renewal may be under way
			k.release(h)
			log.reset()
			next := k.free(b, k.key)
			k.during(k.ttl*2/3, func() {
				k.held(next)
				if ev, ok := log.find(lock.Renewed, k.key); ok {
					k.broken("renewed after Release: %+v", ev)
				}
			})
			k.release(next)
		}
		k.pause(k.ttl / 2)
		k.release(k.free(b, k.key))
	}},
	{"ReleaseStopsRenewalWhenMute", "Release with a dead context ends the renewals, although the server cannot be told", []fault{openConfig, isolate}, func(k *check) {
		var log eventLog
		a, b := k.openConfig(lock.Config{Observe: log.observe}), k.open()
		h := k.acquire(a, k.key)
		heal := k.h.Isolate(k.T, a)
		k.within(100*time.Millisecond+k.slack, "Release with a cancelled context", func() { _ = h.Release(cancelled(k.ctx)) })
		k.pause(k.ttl / 20) // for an event on its way
		log.reset()
		none := func() {
			for _, kind := range []lock.EventKind{lock.Renewed, lock.RenewFailed} {
				if ev, ok := log.find(kind, k.key); ok {
					k.broken("after Release: %+v", ev)
				}
			}
		}
		k.during(k.ttl*2/3, none)
		heal()
		next := k.take(b, k.key, k.ttl+k.slack)
		k.during(k.ttl/2, none)
		k.held(next)
		k.release(next)
	}},
	{"ReleaseAfterExpiry", "a release that comes when another holds the key, or arrives then, touches nobody", []fault{isolate}, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		for _, sent := range []bool{false, true} {
			h := k.acquire(a, k.key)
			heal := k.h.Isolate(k.T, a)
			if sent {
				_ = k.releaseWith(cancelled(k.ctx), h)
			}
			next := k.take(b, k.key, 3*k.ttl+k.slack)
			heal() // what was sent arrives now
			err := k.releaseWith(k.ctx, h)
			if sent && errors.Is(err, lock.ErrLost) || !sent && !errors.Is(err, lock.ErrLost) {
				k.broken("Release after the expiry, begun before it: %v: %v", sent, err)
			}
			k.during(k.ttl/2, func() {
				k.held(next)
				k.taken(c, k.key)
			})
			k.release(next)
		}
	}},
	{"ReleaseIsOwn", "Release touches no other holder", []fault{revoke}, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		h := k.acquire(a, k.key)
		k.h.Revoke(k.T, k.key)
		next := k.take(b, k.key, k.ttl+k.slack)
		if err := k.releaseWith(k.ctx, h); !errors.Is(err, lock.ErrLost) {
			k.broken("Release of a lock that is gone: %v, want ErrLost", err)
		}
		k.during(k.ttl*3/2, func() {
			k.held(next)
			k.taken(c, k.key)
			k.taken(a, k.key)
		})
		k.release(next)
	}},
	{"ReleaseAfterLoss", "Release after a loss is ErrLost, again and again, and harms nobody", []fault{revoke}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		k.h.Revoke(k.T, k.key)
		k.awaitLoss(h, k.ttl+k.slack)
		next := k.take(b, k.key, k.ttl)
		for range 3 {
			if err := k.releaseWith(k.ctx, h); !errors.Is(err, lock.ErrLost) {
				k.broken("Release after a loss: %v, want ErrLost", err)
			}
			k.held(next)
		}
		k.lost(h, nil)
		k.release(next)
	}},
}
