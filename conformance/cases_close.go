package conformance

import (
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

var closeCases = []Case{
	{"CloseFreesEverything", "Close loses what is held, with ErrClosed as cause, and releases it", nil, func(k *check) {
		a, b := k.open(), k.open()
		base := k.newKey("close")
		h1, h2 := k.acquire(a, base+"1"), k.acquire(a, base+"2")
		released := k.acquire(a, base+"3")
		k.release(released)
		k.close(a)
		k.lost(h1, lock.ErrClosed)
		k.lost(h2, lock.ErrClosed)
		if err := released.Err(); !errors.Is(err, lock.ErrReleased) {
			k.broken("Close changed a released handle: %v", err)
		}
		for _, h := range []lock.Handle{h1, h2} {
			k.release(k.take(b, h.Key(), k.ttl/2))
			if err := k.releaseWith(k.ctx, h); !errors.Is(err, lock.ErrLost) {
				k.broken("Release after Close: %v, want ErrLost", err)
			}
		}
	}},
	{"ClosedIsClosed", "after Close every call returns ErrClosed, and a second Close nil", nil, func(k *check) {
		a := k.open()
		k.close(a)
		k.close(a)
		_, tryErr := k.try(a, k.key)
		_, err := k.tryAcquireWith(k.ctx, a, k.key, true)
		_, infoErr := a.Inspect(k.ctx, k.key)
		for _, err := range []error{tryErr, err, infoErr} {
			if !errors.Is(err, lock.ErrClosed) {
				k.broken("a call after Close: %v, want ErrClosed", err)
			}
		}
	}},
	{"CloseEndsWaits", "Close ends every wait, with ErrClosed, and leaves nothing queued", nil, func(k *check) {
		a, b, c := k.open(), k.open(), k.open()
		h := k.acquire(a, k.key)
		var waiting []<-chan acquired
		for range 3 {
			waiting = append(waiting, k.background(k.ctx, b, k.key))
		}
		k.pause(k.ttl / 8)
		k.close(b)
		for _, w := range waiting {
			if got := k.await(w, k.slack); !errors.Is(got.err, lock.ErrClosed) {
				k.broken("a wait that Close ended: error %v, want ErrClosed", got.err)
			}
		}
		k.held(h)
		k.release(h)
		k.release(k.take(c, k.key, k.ttl/2))
	}},
	{"CloseWhenMute", "Close returns within 2 s in any state of the network", []fault{isolate}, func(k *check) {
		a, b := k.open(), k.open()
		base := k.newKey("mute")
		taken := k.acquire(b, base+"-taken")
		h := k.acquire(a, base)
		released := k.acquire(a, base+"-released")
		waiting := k.background(k.ctx, a, base+"-taken")
		local := k.background(k.ctx, a, base)
		k.pause(k.ttl / 10)
		heal := k.h.Isolate(k.T, a)
		_ = k.releaseWith(cancelled(k.ctx), released)
		k.within(2*time.Second+k.slack/2, "Close while the server is mute", func() { _ = a.Close() })
		k.lost(h, lock.ErrClosed)
		for _, w := range []<-chan acquired{waiting, local} {
			if got := k.await(w, k.slack); !errors.Is(got.err, lock.ErrClosed) {
				k.broken("a wait that Close ended: error %v, want ErrClosed", got.err)
			}
		}
		heal()
		k.release(k.take(b, base, 3*k.ttl+k.slack)) // the lease lapses: nothing renews it
		k.release(taken)
	}},
	{"CloseIsBounded", "Close returns within 2 s with many locks held and waited for", nil, func(k *check) {
		a, b := k.open(), k.open()
		base := k.newKey("bounded")
		var waiting []<-chan acquired
		for i := range 30 {
			key := base + "-" + string(rune('a'+i))
			k.acquire(a, key)
			waiting = append(waiting, k.background(k.ctx, a, key))
		}
		k.close(a)
		for _, w := range waiting {
			if got := k.await(w, k.slack); !errors.Is(got.err, lock.ErrClosed) {
				k.broken("a wait that Close ended: error %v, want ErrClosed", got.err)
			}
		}
		k.release(k.take(b, base+"-a", k.ttl/2))
	}},
}

func (k *check) close(l lock.Locker) {
	k.Helper()
	k.within(2*time.Second+k.slack/2, "Close", func() {
		if err := l.Close(); err != nil {
			k.Errorf("Close: %v", err)
		}
	})
}
