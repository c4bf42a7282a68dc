package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// wakeups is how a Locker hears that one of its waiters may have what it waits for:
// from a channel of its own, over one connection for all of them. It listens in a
// goroutine from when the first has to wait, and connects again when that breaks.
type wakeups struct {
	client redis.UniversalClient
	host   driver.Host
	limit  time.Duration                                // of one request
	prefix string                                       // of the channels of all Lockers
	locker string                                       // this one, at the server
	need   func(context.Context) (time.Duration, error) // the head start; measure, but in tests

	life     context.Context // ends when it is closed
	end      context.CancelFunc
	finished chan struct{} // closed when the goroutine has returned

	mu        sync.Mutex
	waiters   map[string]*waiter // by request ID
	headStart time.Duration      // that a waiter of this Locker needs
	started   bool
	hears     bool // it has heard from the server once
}

// A head start is how long a waiter is given to take a lock that was released: a moment to
// wake up, and the way of the call and of its request.
const (
	leastHeadStart = 5 * time.Millisecond
	mostHeadStart  = 100 * time.Millisecond
)

func newWakeups(client redis.UniversalClient, prefix string, limit time.Duration, host driver.Host) *wakeups {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	w := &wakeups{
		client: client, host: host, limit: limit,
		prefix: prefix + ":wake:", locker: hex.EncodeToString(id[:]),
		finished:  make(chan struct{}),
		waiters:   make(map[string]*waiter),
		headStart: leastHeadStart,
	}
	w.need = w.measure
	w.life, w.end = context.WithCancel(context.Background())
	return w
}

// listening says whether waiters can count on being called, as a rule.
func (w *wakeups) listening() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hears
}

// start has the Locker listen from now on.
func (w *wakeups) start() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.started && w.life.Err() == nil {
		w.started = true
		go w.listen()
	}
}

// stop has the listening end, without waiting for that.
func (w *wakeups) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end()
}

// close ends the listening. The connection may be in the middle of being made, which
// cannot be ended: then it is not waited for when ctx ends.
func (w *wakeups) close(ctx context.Context) {
	w.stop()
	w.mu.Lock()
	started := w.started
	w.mu.Unlock()
	if !started {
		return
	}
	select {
	case <-w.finished:
	case <-ctx.Done():
	}
}

// listen listens until the wakeups are closed.
func (w *wakeups) listen() {
	defer close(w.finished)
	warned := false
	for w.life.Err() == nil {
		heard, err := w.hear()
		pause := time.Second
		if heard {
			pause = 10 * time.Millisecond
		}
		if mended, ok := permanent(err); ok && w.life.Err() == nil {
			pause = time.Minute
			if !warned {
				w.host.Warn(fmt.Errorf("waiters have to ask redis again and again, as it does not let them subscribe: %w", mended))
			}
			warned = true
		}
		_ = sleep(w.life, pause)
	}
}

var errMute = errors.New("the server says nothing, to no ping either")

// hear subscribes, and passes on what the server says until the connection breaks, or
// is silent although it was asked for a sign of life. subscribed says whether it had
// begun to.
func (w *wakeups) hear() (subscribed bool, err error) {
	const silence = 2 * time.Second
	sub, err := w.subscribe()
	if err != nil {
		return false, err
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(w.life, func() { _ = sub.Close(); close(closed) }) // ends the reading
	defer func() {
		if stop() {
			_ = sub.Close()
			return
		}
		<-closed
	}()
	w.callAll()
	for asked := false; ; {
		message, err := sub.ReceiveTimeout(w.life, silence)
		switch {
		case err == nil:
			asked = false
			w.heard(message)
		case slow(err) && !asked:
			if asked, err = true, sub.Ping(w.life); err != nil {
				return true, err
			}
		case slow(err):
			return true, errMute
		default:
			return true, err
		}
	}
}

// subscribe returns a connection that the server has confirmed.
func (w *wakeups) subscribe() (*redis.PubSub, error) {
	ctx, cancel := context.WithTimeout(w.life, w.limit)
	defer cancel()
	start, err := w.need(ctx)
	if err != nil {
		return nil, err
	}
	sub := w.client.Subscribe(ctx, w.prefix+w.locker)
	if _, err := sub.ReceiveTimeout(ctx, w.limit); err != nil {
		_ = sub.Close()
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.headStart, w.hears = start, true
	return sub, nil
}

// measure returns the head start that the way to the server asks for. If it proves to be
// too short it grows: see waiter.
func (w *wakeups) measure(ctx context.Context) (time.Duration, error) {
	const tries = 3
	way := mostHeadStart
	for range tries {
		began := time.Now()
		if err := w.client.Process(ctx, once{redis.NewCmd(ctx, "ping")}); err != nil {
			return 0, err
		}
		way = min(way, time.Since(began))
	}
	return min(leastHeadStart+2*way, mostHeadStart).Truncate(time.Millisecond), nil
}

// heard reads a message: the request that may ask, and after how many milliseconds.
func (w *wakeups) heard(message any) {
	switch m := message.(type) {
	case *redis.Subscription: // go-redis has connected again by itself
		w.callAll()
	case *redis.Message:
		id, ms, _ := strings.Cut(m.Payload, " ")
		after, _ := strconv.ParseInt(ms, 10, 64)
		w.call(id, time.Duration(after)*time.Millisecond)
	}
}
