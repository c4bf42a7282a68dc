package conformance

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

var waitCases = []Case{
	{"WaitHandsOver", "Acquire waits until the key is released", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		waiting := k.background(k.ctx, b, k.key)
		k.pause(k.ttl * 3 / 2) // longer than a lease: the holder's is renewed meanwhile
		select {
		case got := <-waiting:
			k.broken("Acquire of a held key returned: handle %v, error %v", got.h, got.err)
		default:
		}
		k.held(h)
		k.release(h)
		got := k.await(waiting, k.ttl+k.slack)
		if got.err != nil {
			k.broken("Acquire after the release: %v", got.err)
		}
		k.held(got.h)
		k.taken(a, k.key)
		k.release(got.h)
	}},
	{"WaitIsBounded", "Wait bounds the wait, and its end is ErrHeld if the key was last seen taken", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		for _, l := range []lock.Locker{b, a} {
			wait := k.ttl / 2
			var err error
			took := k.within(k.longest(), "Acquire with Wait", func() {
				_, err = l.Acquire(k.ctx, k.key, lock.Wait(wait))
			})
			if !errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
				k.broken("a wait that Wait ended: error %q, want one that matches ErrHeld alone", err)
			}
			if took < wait*9/10 || took > wait+k.slack {
				k.broken("Acquire with Wait(%v) took %v", wait, took)
			}
		}
		k.held(h)
	}},
	{"WaitZero", "Wait(0) does not wait", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key, lock.Wait(0))
		if _, err := k.tryAcquireWith(k.ctx, b, k.key, true, lock.Wait(0)); !errors.Is(err, lock.ErrHeld) {
			k.broken("Acquire with Wait(0) of a held key: error %v, want ErrHeld", err)
		}
		k.release(h)
	}},
	{"WaitLeavesNothing", "a wait that ended leaves nothing behind: nobody queues behind it", nil, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		h := k.acquire(a, k.key)
		for range 5 {
			if _, err := k.tryAcquireWith(k.ctx, b, k.key, true, lock.Wait(k.ttl/20)); err == nil {
				k.broken("Acquire with Wait got a key that is held")
			}
		}
		k.release(h)
		h = k.take(c, k.key, k.ttl*3/4)
		k.pause(k.ttl)
		k.held(h)
		k.release(h)
	}},
	{"WaiterIsTrulyIn", "a waiter that wins holds the key for the server too, however long it waited", []fault{isolate}, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		h := k.acquire(a, k.key)
		waiting := k.background(k.ctx, b, k.key)
		k.pause(k.ttl / 4)
		heal := k.h.Isolate(k.T, b) // the waiter's own lease runs out meanwhile, if it has one
		k.pause(k.ttl * 3 / 2)
		heal()
		k.pause(k.ttl / 4)
		k.release(h)
		got := k.await(waiting, 2*k.ttl+k.slack)
		if got.err != nil {
			k.broken("Acquire by a waiter that was cut off for a while: %v", got.err)
		}
		k.during(k.ttl*3/2, func() {
			k.held(got.h)
			k.taken(c, k.key)
		})
		k.release(got.h)
	}},
	{"HandOverRace", "at a hand-over that races the end of the wait there is a handle or an error, never both or an orphan", nil, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		for i := range 40 {
			h := k.acquire(a, k.key)
			ctx, cancel := context.WithCancel(k.ctx)
			waiting := k.background(ctx, b, k.key)
			k.pause(k.ttl / 200)
			go cancel()
			k.pause(time.Duration(i%4) * k.ttl / 4000)
			k.release(h)
			got := k.await(waiting, k.longest())
			cancel()
			switch {
			case got.err == nil:
				k.held(got.h)
				k.taken(c, k.key)
				k.release(got.h)
			case !errors.Is(got.err, context.Canceled):
				k.broken("a cancelled Acquire: error %q, want one that matches context.Canceled", got.err)
			}
			k.release(k.take(c, k.key, k.ttl*3/4))
		}
	}},
}

var contextCases = []Case{
	{"ContextDoneBefore", "a context that is done before the call acquires nothing", nil, func(k *check) {
		a, b := k.open(), k.open()
		for _, wait := range []bool{true, false} {
			_, err := k.tryAcquireWith(cancelled(k.ctx), a, k.key, wait)
			if !errors.Is(err, context.Canceled) {
				k.broken("an acquisition with a cancelled context: error %v, want one that matches context.Canceled", err)
			}
		}
		k.release(k.free(b, k.key))
	}},
	{"ContextEndsWait", "a wait that its context ended fails at once, with an error that matches the context's and its cause", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		for _, l := range []lock.Locker{b, a} { // at the server, and inside the Locker
			cause := errors.New("the user went home")
			ctx, cancel := context.WithCancelCause(k.ctx)
			waiting := k.background(ctx, l, k.key)
			k.pause(k.ttl / 8)
			cancel(cause)
			got := k.await(waiting, 100*time.Millisecond+k.slack)
			if !errors.Is(got.err, context.Canceled) || !errors.Is(got.err, cause) {
				k.broken("error %v, want one that matches context.Canceled and its cause", got.err)
			}

			ctx, stop := context.WithTimeout(k.ctx, k.ttl/8)
			got = k.await(k.background(ctx, l, k.key, lock.Wait(10*k.ttl)), k.ttl/8+k.slack)
			stop()
			if !errors.Is(got.err, context.DeadlineExceeded) {
				k.broken("error %v, want one that matches context.DeadlineExceeded", got.err)
			}
		}
		k.held(h)
	}},
	{"ContextDoesNotEndHold", "the context of Acquire has no influence on the hold", nil, func(k *check) {
		a, b := k.open(), k.open()
		ctx, cancel := context.WithCancel(k.ctx)
		h, err := k.tryAcquireWith(ctx, a, k.key, true)
		if err != nil {
			k.broken("Acquire: %v", err)
		}
		cancel()
		k.during(k.ttl*3/2, func() {
			k.held(h)
			k.taken(b, k.key)
		})
		k.release(h)
	}},
	{"DeadlineDoesNotEndHold", "the deadline of Acquire's context bounds the wait alone", nil, func(k *check) {
		a, b := k.open(), k.open()
		ctx, cancel := context.WithTimeout(k.ctx, k.ttl/2)
		defer cancel()
		h, err := k.tryAcquireWith(ctx, a, k.key, false)
		if err != nil {
			k.broken("TryAcquire: %v", err)
		}
		<-ctx.Done()
		k.during(k.ttl, func() { k.held(h) })
		k.taken(b, k.key)
		k.release(h)
	}},
}
