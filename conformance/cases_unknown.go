package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

var unknownCases = []Case{
	{"UnknownAcquireLeavesNothing", "an acquisition whose outcome is unknown leaves nothing behind", []fault{loseReply}, func(k *check) {
		a, b := k.open(), k.open()
		k.release(k.acquire(a, k.newKey("warm-up")))
		var last lock.Token
		for range 5 {
			k.h.LoseReply(k.T, a)
			h, err := k.try(a, k.key)
			if err != nil {
				if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrHeld) {
					k.broken("TryAcquire whose answer was lost: error %q, want one that matches ErrUnavailable alone", err)
				}
			} else {
				k.held(h)
				k.taken(b, k.key)
				k.release(h)
			}
			// Sooner than any lease ends by itself.
			h = k.take(b, k.key, k.ttl*2/3)
			last = k.greater(h, last)
			k.pause(k.ttl / 2)
			k.held(h)
			k.release(h)
		}
	}},
	{"WaitSurvivesLostReply", "a waiting Acquire whose answer was lost goes on, and gets the key or leaves nothing", []fault{loseReply}, func(k *check) {
		a, b := k.open(), k.open()
		k.release(k.acquire(a, k.newKey("warm-up")))
		for range 3 {
			k.h.LoseReply(k.T, a)
			h := k.take(a, k.key, k.ttl*2/3)
			k.held(h)
			k.taken(b, k.key)
			k.release(h)
			k.release(k.take(b, k.key, k.ttl*2/3))
		}
	}},
	{"UnknownReleaseIsSettled", "a release whose outcome is unknown is settled in the background", []fault{loseReply}, func(k *check) {
		a, b := k.open(), k.open()
		for range 3 {
			h := k.acquire(a, k.key)
			k.h.LoseReply(k.T, a)
			if err := k.releaseWith(k.ctx, h); err != nil && !errors.Is(err, lock.ErrUnavailable) {
				k.broken("Release whose answer was lost: %v, want nil or ErrUnavailable", err)
			}
			next := k.take(b, k.key, k.ttl*2/3)
			if err := k.releaseWith(k.ctx, h); errors.Is(err, lock.ErrLost) {
				k.broken("second Release: %v, but nobody had taken the lock away", err)
			}
			k.pause(k.ttl / 2)
			k.held(next)
			k.release(next)
		}
	}},
	{"UnsentReleaseIsSettled", "a release that could not be sent goes on in the background, detached from its caller", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		heal := k.h.Isolate(k.T, a)
		ctx, cancel := context.WithTimeout(k.ctx, k.ttl/20)
		defer cancel()
		took := k.within(k.longest(), "Release while cut off", func() {
			if err := h.Release(ctx); !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrLost) {
				k.Errorf("Release while cut off: %v, want ErrUnavailable", err)
			}
		})
		if took > k.ttl/20+100*time.Millisecond+k.slack {
			k.broken("Release with a context of %v took %v while cut off", k.ttl/20, took)
		}
		heal()
		k.release(k.take(b, k.key, k.ttl*2/3))
	}},
	{"AbandonedAcquireLeavesNothing", "an Acquire that was given up while the server was silent leaves nothing behind when that answers again", []fault{isolate}, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		k.release(k.acquire(a, k.newKey("warm-up")))
		for range 3 {
			heal := k.h.Isolate(k.T, a)
			for _, wait := range []bool{true, false} {
				ctx, cancel := context.WithTimeout(k.ctx, k.ttl/20)
				_, err := k.tryAcquireWith(ctx, a, k.key, wait)
				cancel()
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, lock.ErrHeld) {
					k.broken("an acquisition given up while the server was silent: error %v, want DeadlineExceeded", err)
				}
			}
			heal()
			k.pause(k.ttl / 10) // what was sent arrives now
			k.release(k.take(b, k.key, k.ttl*2/3))
			k.release(k.take(c, k.key, k.ttl*2/3))
		}
	}},
}

var muteCases = []Case{
	{"MuteServerCancel", "a cancelled call returns at once even if the server is mute", []fault{isolate}, func(k *check) {
		a := k.open()
		k.release(k.acquire(a, k.newKey("warm-up")))
		heal := k.h.Isolate(k.T, a)
		defer heal()
		for _, wait := range []bool{true, false} {
			ctx, cancel := context.WithCancel(k.ctx)
			var err error
			done := make(chan struct{})
			go func() {
				defer close(done)
				if wait {
					_, err = a.Acquire(ctx, k.key)
				} else {
					_, err = a.TryAcquire(ctx, k.key)
				}
			}()
			k.pause(k.ttl / 10)
			cancel()
			k.within(100*time.Millisecond+k.slack, "a cancelled acquisition", func() { <-done })
			if !errors.Is(err, context.Canceled) || errors.Is(err, lock.ErrHeld) {
				k.broken("a cancelled acquisition: error %v, want Canceled and never ErrHeld", err)
			}
		}
		ctx, cancel := context.WithTimeout(k.ctx, k.ttl/20)
		defer cancel()
		k.within(k.ttl/20+100*time.Millisecond+k.slack, "Inspect", func() {
			if _, err := a.Inspect(ctx, k.key); !errors.Is(err, context.DeadlineExceeded) {
				k.Errorf("Inspect of a mute server: error %v, want DeadlineExceeded", err)
			}
		})
	}},
	{"MuteServerIsNotBusy", "'busy' and 'cannot know' are never mixed: a server that could not be asked is ErrUnavailable", []fault{isolate}, func(k *check) {
		a := k.open()
		k.release(k.acquire(a, k.newKey("warm-up")))
		heal := k.h.Isolate(k.T, a)
		defer heal()
		var err error
		wait := k.ttl / 2
		took := k.within(k.longest(), "Acquire with Wait", func() { _, err = a.Acquire(k.ctx, k.key, lock.Wait(wait)) })
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
			k.broken("Acquire from a mute server: error %v, want ErrUnavailable alone", err)
		}
		if took > wait+k.slack {
			k.broken("Acquire with Wait(%v) took %v", wait, took)
		}
	}},
	{"MuteServerTryEnds", "TryAcquire without a deadline ends within 10 s, with ErrUnavailable", []fault{isolate}, func(k *check) {
		a := k.open()
		k.release(k.acquire(a, k.newKey("warm-up")))
		heal := k.h.Isolate(k.T, a)
		defer heal()
		var err error
		k.within(10*time.Second+k.slack, "TryAcquire from a mute server", func() { _, err = a.TryAcquire(k.ctx, k.key) })
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
			k.broken("TryAcquire from a mute server: error %v, want ErrUnavailable alone", err)
		}
	}},
	{"MuteServerRelease", "Release with a cancelled context returns even if the server is mute", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		heal := k.h.Isolate(k.T, a)
		k.within(100*time.Millisecond+k.slack, "Release with a cancelled context", func() {
			if err := h.Release(cancelled(k.ctx)); err == nil {
				k.Errorf("Release from a mute server: nil, but nothing can be known")
			}
		})
		if err := h.Err(); !errors.Is(err, lock.ErrReleased) {
			k.broken("Err after Release: %v, want ErrReleased", err)
		}
		heal()
		k.release(k.take(b, k.key, k.ttl+k.slack))
	}},
}
