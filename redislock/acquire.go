package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// Acquire implements driver.Driver. Who waits stands in the queue at the server, and
// sleeps until a release calls it; the call ends with ErrAgain, and the next one finds the
// lock free, and kept for it.
//
// No waiter depends on being called. The server may forget the queue, a message may be
// lost with a connection, the one whose turn it is may be dead: so each asks again when
// the lease that it waits for should be over, and at least once a second.
func (b *backend) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	if r.Mode != lock.ModeExclusive {
		return nil, driver.Permanent(fmt.Errorf("shared locks in Redis: %w", errors.ErrUnsupported))
	}
	if r.Wait && b.wakeups.listening() {
		return b.wait(ctx, r)
	}
	g, err := b.try(ctx, r)
	if r.Wait && errors.Is(err, lock.ErrHeld) {
		b.wakeups.start() // and ask at intervals until it has
	}
	return g, err
}

// try makes an attempt that leaves nothing in the queue.
func (b *backend) try(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	g, busy, err := b.ask(ctx, r, nil)
	// While it is only kept for another, nobody holds it. That is over in a moment, or it
	// is taken, or the next one is called.
	for range mostTurns {
		if !busy.turn {
			break
		}
		if sleep(ctx, busy.left+time.Millisecond) != nil {
			return nil, driver.Refused(ctx.Err())
		}
		g, busy, err = b.ask(ctx, r, nil)
	}
	if busy.yes {
		r.Busy()
		err = lock.ErrHeld
	}
	return g, err
}

// mostTurns is after how many turns a lock counts as held although nobody was seen to
// hold it.
const mostTurns = 10

// wait makes an attempt that, if the lock is taken, leaves r in the queue, and sleeps
// until it is worth while to ask again. It is called when the Locker listens already: it
// may be called before it sleeps.
func (b *backend) wait(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	w := b.wakeups.enter(r.ID)
	g, busy, err := b.ask(ctx, r, w)
	b.wakeups.answered(r.ID, busy, err)
	if !busy.yes {
		return g, err
	}
	r.Busy()
	if err := w.sleep(ctx, w.patience(busy)); err != nil {
		return nil, err // not marked: it stands in the queue
	}
	return nil, driver.ErrAgain
}

// busy is the answer that the lock is taken.
type busy struct {
	yes  bool
	turn bool          // it is free, and kept for a moment for one who waits
	left time.Duration // until that, or the lease, is over; negative: no end is known

	// Of a waiter:
	place  string // in the queue
	missed bool   // it was called, and has not come
}

// ask runs the script that acquires, for a waiter if w is not nil.
func (b *backend) ask(ctx context.Context, r *driver.Request, w *waiter) (driver.Grant, busy, error) {
	name := lockName(b.prefix, r.Key)
	keys := []any{name, counterName(name), tombstoneName(name, r.ID), turnName(name), queueName(name), askedName(name)}
	ttl := r.TTL.Truncate(time.Millisecond) // what the server is told, and no more
	args := []any{r.ID, ttl.Milliseconds(), b.maxTTLSeconds(), r.Owner, ""}
	if w != nil {
		args = append(args[:4], w.entry, w.place, fmt.Sprintf("%03d", w.headStart.Milliseconds()), b.wakeups.prefix)
	}
	proved := driver.Now()
	reply, err := b.run(ctx, newCall(acquireScript, keys, args...))
	if err != nil {
		return nil, busy{}, err
	}
	switch reply := reply.(type) {
	case string:
		token, err := strconv.ParseUint(reply, 10, 64)
		if err != nil {
			return nil, busy{}, unexpected(reply)
		}
		return &grant{backend: b, name: name, id: r.ID, token: lock.Token(token), ttl: ttl, proved: proved}, busy{}, nil
	case int64:
		return nil, busy{}, declined(-reply, keys)
	case []any:
		return b.postponed(reply)
	}
	return nil, busy{}, unexpected(reply)
}

// declined is for the numbers of acquire.lua: 1, the request was abandoned; above, what
// is not ours.
func declined(code int64, keys []any) error {
	switch code {
	case 1:
		return driver.Refused(errors.New("the request was abandoned"))
	case 2, 3:
		return foreign(keys[code-2]) // lock and counter
	case 4, 5, 6:
		return foreign(keys[code-1]) // turn, queue and times
	}
	return unexpected(code)
}

// postponed is for the lists of acquire.lua: why the lock cannot be had now, for how
// many milliseconds, a waiter's place, and whether it has missed its turn.
func (b *backend) postponed(reply []any) (driver.Grant, busy, error) {
	if len(reply) != 4 {
		return nil, busy{}, unexpected(reply)
	}
	ms, ok := reply[1].(int64)
	place, isText := reply[2].(string)
	if !ok || !isText {
		return nil, busy{}, unexpected(reply)
	}
	left := time.Duration(ms) * time.Millisecond
	switch reply[0] {
	case int64(0), int64(1):
		return nil, busy{yes: true, turn: reply[0] == int64(1), left: left, place: place, missed: reply[3] == int64(1)}, nil
	case int64(2):
		return nil, busy{}, driver.Refused(fmt.Errorf("redis was started a short time ago, and may have forgotten locks "+
			"of up to max_ttl, %v: none is granted for another %v", b.maxTTL, left))
	}
	return nil, busy{}, unexpected(reply)
}

// maxTTLSeconds rounds up.
func (b *backend) maxTTLSeconds() int64 { return int64((b.maxTTL + time.Second - 1) / time.Second) }

// sleep sleeps for d. Its error is that of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
