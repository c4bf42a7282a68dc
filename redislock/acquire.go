package redislock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// Acquire implements driver.Driver. A call is one try, or two. Who waits then stands in
// the queue at the server, and sleeps until a release calls it; the call ends with
// ErrAgain, and the next one finds the lock free, and kept for it.
//
// No waiter depends on being called. The server may forget the queue, a message may be
// lost with a connection, the one whose turn it is may be dead: so each asks again when
// the lease that it waits for should be over, and at least once a second.
func (b *backend) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	if r.Mode != lock.ModeExclusive {
		return nil, driver.Permanent(fmt.Errorf("shared locks in Redis: %w", errors.ErrUnsupported))
	}
	if r.Wait && b.wakeups.listening() {
		return b.queue(ctx, r)
	}
	g, err := b.try(ctx, r)
	if r.Wait && errors.Is(err, lock.ErrHeld) && b.wakeups.listen(ctx) {
		return b.queue(ctx, r)
	}
	return g, err
}

// try makes an attempt that leaves nothing in the queue.
func (b *backend) try(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	g, busy, err := b.ask(ctx, r, "")
	if busy.turn {
		// Nobody holds it. Whose turn it is may be dead, and in a moment it is over.
		if sleep(ctx, busy.left+time.Millisecond, nil) != nil {
			return nil, driver.Refused(ctx.Err())
		}
		g, busy, err = b.ask(ctx, r, "")
	}
	if busy.yes {
		r.Busy()
		err = lock.ErrHeld
	}
	return g, err
}

// queue makes an attempt that, if the lock is taken, leaves r in the queue, and
// sleeps until it is worth while to ask again. It is called with the connection
// open over which the waiter will be called: before it can be.
func (b *backend) queue(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	call := b.wakeups.expect(r.ID)
	defer b.wakeups.forget(r.ID)
	g, busy, err := b.ask(ctx, r, b.wakeups.entry(r.ID))
	if !busy.yes {
		return g, err
	}
	r.Busy()
	if err := sleep(ctx, busy.patience(), call); err != nil {
		return nil, err // not marked: it stands in the queue
	}
	return nil, driver.ErrAgain
}

// busy is the answer that the lock is taken.
type busy struct {
	yes  bool
	turn bool          // it is free, and kept for a moment for one who waits
	left time.Duration // until that, or the lease, is over; negative: it has no end
}

// patience is how long to sleep without being called.
func (b busy) patience() time.Duration {
	const most = time.Second
	if b.left < 0 || b.left > most {
		return most - rand.N(most/10)
	}
	return b.left + time.Millisecond + rand.N(5*time.Millisecond)
}

// ask runs the script that acquires. entry is that of a waiter, or "".
func (b *backend) ask(ctx context.Context, r *driver.Request, entry string) (driver.Grant, busy, error) {
	name := lockName(b.prefix, r.Key)
	keys := []string{name, counterName(name), tombstoneName(name, r.ID), turnName(name), queueName(name)}
	ttl := r.TTL.Truncate(time.Millisecond) // what the server is told, and no more
	proved := driver.Now()
	reply, err := b.run(ctx, acquireScript, keys, r.ID, ttl.Milliseconds(), r.Owner, entry, b.maxTTLSeconds())
	if err != nil {
		return nil, busy{}, err
	}
	switch reply := reply.(type) {
	case string:
		token, err := strconv.ParseUint(reply, 10, 64)
		if err != nil {
			return nil, busy{}, unexpected(reply)
		}
		return &grant{backend: b, key: r.Key, id: r.ID, token: lock.Token(token), ttl: ttl, proved: proved}, busy{}, nil
	case int64:
		return nil, busy{}, declined(-reply, keys)
	case []any:
		return b.postponed(reply)
	}
	return nil, busy{}, unexpected(reply)
}

// declined is for the numbers of acquire.lua: 1, the request was abandoned; above, the
// position among keys of what is not ours.
func declined(code int64, keys []string) error {
	switch code {
	case 1:
		return driver.Refused(errors.New("the request was abandoned"))
	case 2:
		return foreign(keys[0])
	case 3:
		return foreign(keys[1])
	case 4:
		return foreign(keys[3])
	case 5:
		return foreign(keys[4])
	}
	return unexpected(code)
}

// postponed is for the pairs of acquire.lua: why the lock cannot be had now, and for
// how many milliseconds.
func (b *backend) postponed(pair []any) (driver.Grant, busy, error) {
	if len(pair) != 2 {
		return nil, busy{}, unexpected(pair)
	}
	ms, ok := pair[1].(int64)
	left := time.Duration(ms) * time.Millisecond
	switch {
	case ok && pair[0] == int64(0):
		return nil, busy{yes: true, left: left}, nil
	case ok && pair[0] == int64(1):
		return nil, busy{yes: true, turn: true, left: left}, nil
	case ok && pair[0] == int64(2):
		return nil, busy{}, driver.Refused(fmt.Errorf("redis was started a short time ago, and may have forgotten locks "+
			"of up to max_ttl, %v: none is granted for another %v", b.maxTTL, left))
	}
	return nil, busy{}, unexpected(pair)
}

// maxTTLSeconds rounds up.
func (b *backend) maxTTLSeconds() int64 { return int64((b.maxTTL + time.Second - 1) / time.Second) }

// sleep returns after d, or sooner if call says so; it gives the time from then on. Its
// error is that of ctx.
func sleep(ctx context.Context, d time.Duration, call <-chan time.Duration) error {
	end := time.Now().Add(d)
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case after := <-call:
			if after == 0 {
				return nil
			}
			timer.Reset(min(after, time.Until(end)))
		}
	}
}
