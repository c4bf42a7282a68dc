package conformance

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
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
	{"WaitOutlastsTTL", "a wait is as long as was asked for, whatever the TTL of those who hold and wait", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		wait := k.ttl * 5 / 2
		began := time.Now()
		for _, w := range []<-chan acquired{ // at the server, and inside the Locker
			k.background(k.ctx, b, k.key, lock.Wait(wait)),
			k.background(k.ctx, a, k.key, lock.Wait(wait)),
		} {
			got := k.await(w, wait+k.slack)
			if !errors.Is(got.err, lock.ErrHeld) || errors.Is(got.err, lock.ErrUnavailable) {
				k.broken("Acquire with Wait(%v): error %v, want one that matches ErrHeld alone", wait, got.err)
			}
			if took := got.at.Sub(began); took < wait*9/10 {
				k.broken("Acquire with Wait(%v) took %v", wait, took)
			}
		}
		k.held(h)
		k.release(h)
		k.awaitNobody(b, k.key)
	}},
	{"HandOverRace", "at a hand-over that races the end of the wait there is a handle or an error, never both or an orphan", nil, func(k *check) {
		const keys, rounds = 10, 50
		a, b, c := k.open(), k.open(), k.open()
		var wg sync.WaitGroup
		failed := make(chan error, keys)
		for i := range keys {
			r := &handOver{check: k, key: fmt.Sprint(k.key, "-", i), from: a, to: b, next: c}
			if i%3 == 2 {
				r.to = a // inside the Locker
			}
			wg.Go(func() {
				for n := range rounds {
					if err := r.race(n); err != nil {
						failed <- fmt.Errorf("round %d: %w", n, err)
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
		for i := range keys {
			k.awaitNobody(c, fmt.Sprint(k.key, "-", i))
		}
	}},
}

// handOver is a key that passes from one Locker to another, which waits for it with a
// context that ends at about that moment.
type handOver struct {
	*check
	key            string
	from, to, next lock.Locker
}

func (r *handOver) race(n int) error {
	ctx, stop := context.WithTimeout(r.ctx, r.longest())
	defer stop()
	began := time.Now()
	h, err := r.from.Acquire(ctx, r.key)
	if err != nil {
		return fmt.Errorf("the first acquisition: %w", err)
	}
	way := time.Since(began) // of a request; a hand-over takes two or three

	head, jitter := r.ttl/200, rand.N(3*way+1)
	over := context.Canceled
	wait, end := context.WithCancel(ctx)
	if n%2 == 1 {
		over = context.DeadlineExceeded
		wait, end = context.WithTimeout(ctx, head+jitter)
	}
	defer end()
	waiting := r.background(wait, r.to, r.key)
	r.pause(head) // it queues
	if n%2 == 0 {
		go func() { r.pause(jitter); end() }()
	}
	if err := h.Release(ctx); err != nil {
		return fmt.Errorf("its release: %w", err)
	}
	switch got := <-waiting; {
	case got.h == nil && got.err == nil:
		return errors.New("a wait ended with neither a handle nor an error")
	case got.h != nil && got.err != nil:
		return fmt.Errorf("a wait ended with a handle, and an error, too: %w", got.err)
	case got.h != nil:
		if err := r.alone(ctx, got.h); err != nil {
			return err
		}
	case !errors.Is(got.err, over):
		return fmt.Errorf("a wait that its context ended has not its error, but: %w", got.err)
	}
	h, err = r.next.Acquire(ctx, r.key, lock.Wait(r.ttl*3/4))
	if err != nil {
		return fmt.Errorf("an orphan is left: %w", err)
	}
	return h.Release(ctx)
}

// alone checks that h is held, and releases it.
func (r *handOver) alone(ctx context.Context, h lock.Handle) error {
	if err := h.Err(); err != nil {
		return fmt.Errorf("the lock that a waiter was given: %w", err)
	}
	if _, err := r.next.TryAcquire(ctx, r.key); !errors.Is(err, lock.ErrHeld) {
		return errors.Join(errors.New("a try while it is held does not end with ErrHeld"), err)
	}
	return h.Release(ctx)
}

var contextCases = []Case{
	{"ContextDoneBefore", "a context that is done before the call acquires nothing, and its error says why", nil, func(k *check) {
		a, b := k.open(), k.open()
		late, stop := context.WithTimeout(k.ctx, -time.Second)
		defer stop()
		cause := errors.New("the user went home")
		caused, cancel := context.WithCancelCause(k.ctx)
		cancel(cause)
		for _, dead := range []struct {
			ctx  context.Context
			want error
		}{{cancelled(k.ctx), context.Canceled}, {late, context.DeadlineExceeded}, {caused, context.Canceled}, {caused, cause}} {
			for _, wait := range []bool{true, false} {
				_, err := k.tryAcquireWith(dead.ctx, a, k.key, wait)
				if !errors.Is(err, dead.want) || errors.Is(err, lock.ErrHeld) {
					k.broken("an acquisition with a context that is done: error %v, want one that matches %q, and not ErrHeld", err, dead.want)
				}
			}
		}
		k.release(k.free(b, k.key))
		k.pause(k.ttl / 10) // for what comes late, if anything was sent
		k.awaitNobody(b, k.key)
		k.release(k.free(b, k.key))
	}},
	{"ContextShorterThanAnswer", "a context that ends before the answer comes is the error, or the lock is held: nothing is left between", []fault{slowReplies}, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		k.release(k.acquire(a, k.newKey("warm-up")))
		slow := k.ttl / 20
		for _, taken := range []bool{false, true} {
			for _, limit := range []time.Duration{k.ttl / 2000, slow * 9 / 10, slow, slow * 11 / 10} {
				var h lock.Handle
				if taken {
					h = k.acquire(b, k.key)
				}
				heal := k.h.SlowReplies(k.T, a, slow)
				for _, wait := range []bool{true, false} {
					k.hasty(a, wait, limit)
				}
				heal()
				if taken {
					k.held(h)
					k.release(h)
				}
				k.release(k.take(c, k.key, k.ttl*2/3))
				k.awaitNobody(c, k.key)
			}
		}
	}},
	{"FirstLimitDecides", "of context and Wait, the one that ends first ends the wait, and is the one that the error tells of", nil, func(k *check) {
		a, b := k.open(), k.open()
		h := k.acquire(a, k.key)
		short, long := k.ttl/2, 10*k.ttl
		for _, byContext := range []bool{true, false} {
			limit, wait := long, short
			if byContext {
				limit, wait = short, long
			}
			ctx, cancel := context.WithTimeout(k.ctx, limit)
			defer cancel()
			began := time.Now()
			for _, w := range []<-chan acquired{ // at the server, and inside the Locker
				k.background(ctx, b, k.key, lock.Wait(wait)),
				k.background(ctx, a, k.key, lock.Wait(wait)),
			} {
				got := k.await(w, short+k.slack)
				if took := got.at.Sub(began); took < short*9/10 {
					k.broken("with a context of %v and Wait(%v): over after %v", limit, wait, took)
				}
				if !errors.Is(got.err, lock.ErrHeld) || errors.Is(got.err, lock.ErrUnavailable) || errors.Is(got.err, context.DeadlineExceeded) != byContext {
					k.broken("with a context of %v and Wait(%v): error %v; want ErrHeld, and DeadlineExceeded if it was the context", limit, wait, got.err)
				}
			}
		}
		k.held(h)
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

// hasty acquires with a context that ends at about the moment at which the answer comes.
func (k *check) hasty(l lock.Locker, wait bool, limit time.Duration) {
	k.Helper()
	ctx, cancel := context.WithTimeout(k.ctx, limit)
	defer cancel()
	h, err := k.tryAcquireWith(ctx, l, k.key, wait)
	switch {
	case err == nil:
		k.held(h)
		k.release(h)
	case !wait && errors.Is(err, lock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded): // it was answered in time
	case !errors.Is(err, context.DeadlineExceeded):
		k.broken("an acquisition with a context of %v: error %v, want one that matches DeadlineExceeded", limit, err)
	}
}
