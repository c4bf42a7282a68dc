package torture

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// hold is one grant in the hands of a worker.
type hold struct {
	lock.Handle
	w      *worker
	rng    *rand.Rand
	pen    *pen
	key    string
	op     uint64
	token  uint64
	shared bool
	until  int64         // the latest end of its validity that was logged
	done   chan struct{} // closed when it is over for its holder
}

func (w *worker) held(handle lock.Handle, op uint64, shared bool) *hold {
	h := &hold{Handle: handle, w: w, key: handle.Key(), op: op, shared: shared, done: make(chan struct{})}
	token, _ := handle.Token()
	h.token = uint64(token)
	return h
}

// granted logs a grant that was returned at a moment just before.
func (h *hold) granted(at int64, limit time.Duration) {
	h.until = h.validUntil()
	h.say(Event{At: at, Kind: Granted, Limit: int64(limit), Until: h.until})
}

func (h *hold) say(e Event) {
	e.Op, e.Key, e.Token, e.Shared = h.op, h.key, h.token, h.shared
	h.w.say(e)
}

// validUntil returns until when the handle says that it is valid, no later than it means.
func (h *hold) validUntil() int64 {
	at := now()
	return at + int64(h.Valid())
}

// watch logs Lost at the moment it closes.
func (h *hold) watch() {
	lost := h.Lost()
	select {
	case <-lost:
	case <-h.done:
		select {
		case <-lost:
		default:
			return
		}
	}
	at := now()
	h.say(Event{At: at, Kind: Lost, Err: outcome(h.Err())})
}

// hold works under the lock, for an instant or for longer than it lasts; if it is lost,
// for a while more, as one does who has to wind down.
func (h *hold) hold() {
	w, rng := h.w, h.rng
	length := upTo(rng, w.TTL/20)
	switch n := rng.IntN(12); {
	case n < 3:
		length = 0
	case n < 8:
	case n < 10:
		length = upTo(rng, w.TTL/2)
	case n < 11:
		length = upTo(rng, 3*w.TTL/2)
	default:
		length = w.TTL + upTo(rng, 3*w.TTL/2)
	}
	blind := rng.IntN(4) == 0 // it does not look whether it has lost
	lastWords := upTo(rng, w.TTL/4)
	end := now() + int64(length)
	lost := false
	for now() < end {
		h.write()
		if w.Suicides && rng.IntN(200) == 0 {
			w.say(Event{Kind: Dying})
			die()
		}
		var over <-chan struct{}
		if !lost && !blind {
			over = h.Lost()
		}
		select {
		case <-time.After(upTo(rng, w.TTL/20)):
		case <-over:
		case <-w.ctx.Done():
			return
		}
		if lost = h.judge(lost); lost && !blind {
			end = min(end, now()+int64(lastWords))
		}
	}
}

// judge notes what the handle says of itself: whether it is valid for longer, and that
// it is not after it was lost.
func (h *hold) judge(wasLost bool) (lost bool) {
	lost = h.Err() != nil
	until := h.validUntil()
	valid := until > now()
	switch {
	case wasLost && (!lost || valid):
		h.say(Event{Kind: Revived, Until: until})
	case !lost && until > h.until+int64(time.Millisecond):
		h.until = until
		h.say(Event{Kind: Proved, Until: until})
	}
	return wasLost || lost
}

// write writes once to the resource, which judges by the token alone.
func (h *hold) write() {
	if h.token == 0 {
		return
	}
	value := h.w.Life<<32 | h.w.values.Add(1)
	h.say(Event{Kind: Write, Value: value})
	accepted, fence, err := h.pen.write(h.key, h.token, value)
	if err != nil {
		return // the test is over
	}
	h.say(Event{Kind: Wrote, Value: value, OK: accepted, Fence: fence})
}

// release gives the lock up, or leaves one that was lost alone.
func (h *hold) release() {
	defer close(h.done)
	wasLost := h.Err() != nil
	if wasLost && h.rng.IntN(2) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if h.rng.IntN(10) == 0 {
		cancel()
	}
	h.say(Event{Kind: Release})
	err := h.Release(ctx)
	at := now()
	h.say(Event{At: at, Kind: Released, Err: outcome(err)})
	if h.Err() == nil || h.Valid() > 0 {
		h.say(Event{Kind: Revived})
	}
	if h.rng.IntN(20) == 0 {
		_ = h.Release(ctx) // it may be called again, and never touches another
	}
}
