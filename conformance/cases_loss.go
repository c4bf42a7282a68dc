package conformance

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

var lossCases = []Case{
	{"LostBeforeTakeover", "Lost closes before anyone else can be granted the key", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		k.pause(k.ttl) // some renewals
		told := make(chan bool, 1)
		waiting := k.backgroundThen(k.ctx, b, k.key, func() { told <- isLost(h) })
		heal := k.h.Isolate(k.T, a)
		defer heal()
		got := k.await(waiting, 3*k.ttl+k.slack)
		if got.err != nil {
			k.broken("Acquire after the holder was cut off: %v", got.err)
		}
		if first := <-told; k.h.Promises&lock.Leased != 0 && !first {
			k.broken("another was granted the key while Lost was open")
		}
		k.awaitLoss(h, k.ttl+k.slack)
		k.lost(h, nil)
		k.held(got.h)
		k.release(got.h)
	}},
	{"LostWithinTTL", "a holder that is cut off is told within the TTL, whatever hangs", []fault{isolate}, func(k *check) {
		a := k.open()
		h := k.acquire(a, k.key)
		k.pause(k.ttl * 3 / 2)
		heal := k.h.Isolate(k.T, a)
		defer heal()
		if took := k.awaitLoss(h, k.ttl+k.slack); took > k.ttl+k.slack/2 {
			k.broken("Lost closed %v after the cut, want at most the TTL of %v", took, k.ttl)
		}
		k.lost(h, nil)
	}},
	{"DeadlineFromSending", "the deadline counts from before the request was sent that proved the lock", []fault{slowReplies}, func(k *check) {
		a := k.open()
		h := k.acquire(a, k.key)
		quick := k.mostValid(h)
		k.release(h)
		// A new connection takes several round trips, which must all fit into one
		// attempt of a sixth of the TTL, on a busy machine too.
		slow := k.ttl / 40
		heal := k.h.SlowReplies(k.T, a, slow)
		h = k.acquire(a, k.key)
		// The delay is less than a margin for clocks may be, and so Valid is compared
		// with what it is without the delay. Half of the delay is for the machine.
		if most := k.mostValid(h); most > quick-slow/2 {
			k.broken("Valid() = %v with answers that take %v, and %v without: it counts from the answer, and the server may let go earlier", most, slow, quick)
		}
		k.held(h)
		heal()
		k.release(h)
	}},
	{"ValidNeverExceedsTTL", "no renewal proves more than one TTL", nil, func(k *check) {
		h := k.acquire(k.open(), k.key)
		k.during(k.ttl*5/2, func() { k.held(h) })
		k.release(h)
	}},
	{"FailedRenewalIsNoLoss", "a renewal that fails is unknown: it is retried until the deadline", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		for range 3 {
			// The next renewal is sent within a third of the pace, and fails within
			// a sixth more. What is left after that is for the one that succeeds.
			pace := min(k.ttl, k.term)
			k.awaitRenewal(h)
			heal := k.h.Isolate(k.T, a)
			k.pause(pace * 3 / 5)
			heal()
			k.pause(k.ttl)
			k.held(h)
		}
		k.taken(b, k.key)
		k.release(h)
	}},
	{"LostIsForGood", "a loss is never taken back: no renewal that comes late revives it", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		k.pause(k.ttl / 2)
		heal := k.h.Isolate(k.T, a)
		k.awaitLoss(h, k.ttl+k.slack)
		heal() // what was sent before the loss arrives now
		k.during(k.ttl*3/2, func() { k.lost(h, nil) })
		// The holder has not released. Nothing may keep the key for it any more.
		k.release(k.take(b, k.key, 2*k.ttl+k.slack))
	}},
	{"RevokedIsNoticed", "a lock that is deleted by hand is lost within a third of the term and one attempt", []fault{revoke}, func(k *check) {
		a := k.open()
		h := k.acquire(a, k.key)
		k.pause(k.ttl / 8)
		k.h.Revoke(k.T, k.key)
		k.awaitLoss(h, k.ttl*2/3+k.slack)
		k.lost(h, nil)
	}},
	{"RevokedIsNotMadeAgain", "renewal extends what is there and never creates what is not", []fault{revoke}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		k.pause(k.ttl / 8)
		k.h.Revoke(k.T, k.key)
		k.awaitLoss(h, k.ttl*2/3+k.slack)
		k.release(k.free(b, k.key))
	}},
	{"RevokedWhileAnotherPolls", "a lock that vanishes is free at once and stays free, its holder is told, and then acquires with a greater token", []fault{revoke}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		last := k.greater(h, 0)
		k.pause(k.ttl / 8)
		poll := func() {
			next := k.free(b, k.key) // between two polls nobody holds it but who makes it again
			last = k.greater(next, last)
			k.release(next)
		}
		k.h.Revoke(k.T, k.key)
		for end := time.Now().Add(k.ttl*2/3 + k.slack); !isLost(h); k.pause(k.ttl / 50) {
			if time.Now().After(end) {
				k.broken("Lost is open %v after the lock vanished", k.ttl*2/3+k.slack)
			}
			poll()
		}
		k.during(k.ttl/2, poll)
		k.lost(h, nil)
		if err := k.releaseWith(k.ctx, h); !errors.Is(err, lock.ErrLost) {
			k.broken("Release of a lock that vanished: %v, want ErrLost", err)
		}
		again := k.free(a, k.key)
		k.greater(again, last)
		k.taken(b, k.key)
		k.release(again)
	}},
	{"AcquireAfterLoss", "after a loss the same Locker acquires again, with a greater token", []fault{revoke}, func(k *check) {
		a := k.open()
		h := k.acquire(a, k.key)
		k.h.Revoke(k.T, k.key)
		k.awaitLoss(h, k.ttl+k.slack)
		again := k.take(a, k.key, k.ttl)
		if k.h.Promises&lock.Fencing != 0 && tokenOf(again) <= tokenOf(h) {
			k.broken("token %d after a loss, want more than %d", tokenOf(again), tokenOf(h))
		}
		_ = k.releaseWith(k.ctx, h)
		k.held(again)
		k.release(again)
	}},
	{"RecoversAfterCut", "a Locker that was cut off works again without being opened again", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		heal := k.h.Isolate(k.T, a)
		k.awaitLoss(h, k.ttl+k.slack)
		k.pause(k.ttl)
		heal()
		again := k.take(a, k.newKey("other"), 3*k.ttl+k.slack)
		k.during(k.ttl*3/2, func() { k.held(again) })
		k.release(again)
		_ = k.releaseWith(k.ctx, h)
		k.release(k.take(b, k.key, k.ttl+k.slack))
	}},
	{"OldLocksSurviveRestart", "after a restart of the server the same Locker works, and no handle claims what is gone", []fault{restart}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		k.h.Restart(k.T)
		next := k.take(b, k.key+"-other", 3*k.ttl+k.slack)
		k.release(next)
		// Kept or forgotten by the server: if another gets it, the first must be told.
		if err := k.releaseWith(k.ctx, h); err == nil {
			k.release(k.take(b, k.key, k.ttl+k.slack))
		}
		again := k.take(a, k.key, 3*k.ttl+k.slack)
		k.during(k.ttl, func() { k.held(again) })
		k.release(again)
	}},
}

var marginCases = []Case{
	{"MarginComesFirst", "Margin closes Lost that long before the lease can end: nobody else is let in meanwhile", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		margin := min(k.ttl, k.term) * 2 / 5
		h := k.acquire(a, k.key, lock.Margin(margin))
		k.pause(k.ttl)
		k.held(h)
		waiting := k.background(k.ctx, b, k.key)
		heal := k.h.Isolate(k.T, a)
		defer heal()
		k.awaitLoss(h, k.ttl+k.slack)
		told := time.Now()
		got := k.await(waiting, 3*k.ttl+k.slack)
		if got.err != nil {
			k.broken("Acquire after the holder was cut off: %v", got.err)
		}
		if alone := got.at.Sub(told); k.h.Promises&lock.Leased != 0 && alone < margin/2 {
			k.broken("another was let in %v after the loss, with a Margin of %v", alone, margin)
		}
		k.release(got.h)
	}},
	{"WindingDownIsAlone", "nothing is freed between Lost and Release: a holder that winds down is still alone", []fault{}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key, lock.MaxHold(k.ttl/2))
		k.awaitLoss(h, k.ttl/2+k.slack)
		k.during(k.ttl/3, func() { k.taken(b, k.key) })
		if err := k.releaseWith(k.ctx, h); err == nil {
			k.broken("Release after a loss: nil, want ErrLost")
		}
		k.release(k.take(b, k.key, k.ttl/2))
	}},
	{"MarginSurvivesHeal", "a loss by Margin stands although the server can be reached again, and the holder is alone until it releases", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key, lock.Margin(min(k.ttl, k.term)*2/5))
		heal := k.h.Isolate(k.T, a)
		k.awaitLoss(h, k.ttl+k.slack)
		heal()
		k.during(k.ttl/5, func() {
			k.taken(b, k.key)
			k.lost(h, nil)
		})
		_ = k.releaseWith(k.ctx, h)
		k.release(k.take(b, k.key, k.ttl/2))
	}},
	{"MaxHold", "a hold that lasts longer than MaxHold is lost, with ErrMaxHold as cause", nil, func(k *check) {
		h := k.acquire(k.open(), k.key, lock.MaxHold(k.ttl*3/2))
		k.pause(k.ttl)
		k.held(h)
		if v := h.Valid(); v > k.ttl/2 {
			k.broken("Valid() = %v with %v of MaxHold left", v, k.ttl/2)
		}
		k.awaitLoss(h, k.ttl/2+k.slack)
		k.lost(h, lock.ErrMaxHold)
	}},
	{"MaxHoldFreesAtLast", "what is held longer than MaxHold is free one TTL later, released or not", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key, lock.MaxHold(k.ttl/2))
		got := k.await(k.background(k.ctx, b, k.key), 2*k.ttl+k.slack)
		if got.err != nil {
			k.broken("Acquire of a key held too long: %v", got.err)
		}
		k.lost(h, lock.ErrMaxHold)
		k.held(got.h)
		k.release(got.h)
	}},
}
