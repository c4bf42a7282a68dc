package redislock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// wakeups is how a Locker hears that one of its waiters may have what it waits for:
// from a channel of its own, over one connection for all of them, which is made when
// the first has to wait. go-redis makes it again when it breaks.
type wakeups struct {
	client redis.UniversalClient
	host   driver.Host
	limit  time.Duration // of one request
	prefix string        // of the channels of all Lockers
	locker string        // this one, at the server

	least, most time.Duration // of head starts

	mu       sync.Mutex
	calls    map[string]chan time.Duration // of who waits, by request ID: after how long to ask
	sub      *redis.PubSub                 // nil until there is one
	start    time.Duration                 // the head start that a waiter of this Locker needs
	making   chan struct{}                 // closed when the attempt to make one is over
	retry    time.Time                     // not before this
	closed   bool
	finished chan struct{} // closed when nobody reads from sub any more
}

func newWakeups(client redis.UniversalClient, prefix string, limit time.Duration, host driver.Host) *wakeups {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return &wakeups{
		client: client, host: host, limit: limit,
		prefix: prefix + ":wake:", locker: hex.EncodeToString(id[:]),
		least: 5 * time.Millisecond, most: 100 * time.Millisecond,
		calls: make(map[string]chan time.Duration),
	}
}

// entry is what stands in the queue for a request: the Locker to be called, the request,
// and its head start in milliseconds.
func (w *wakeups) entry(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.locker + " " + id + " " + strconv.FormatInt(w.start.Milliseconds(), 10)
}

// expect returns the channel over which the waiter will be called.
func (w *wakeups) expect(id string) <-chan time.Duration {
	call := make(chan time.Duration, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[id] = call
	return call
}

func (w *wakeups) forget(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.calls, id)
}

// listening says whether there is a connection, or go-redis is making it again.
func (w *wakeups) listening() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sub != nil
}

// listen makes the connection, unless there is one. false: it cannot be had now, and
// waiters ask at intervals instead.
func (w *wakeups) listen(ctx context.Context) bool {
	w.mu.Lock()
	for w.making != nil {
		making := w.making
		w.mu.Unlock()
		select {
		case <-making:
		case <-ctx.Done():
			return false
		}
		w.mu.Lock()
	}
	defer w.mu.Unlock()
	if w.sub != nil || w.closed || time.Now().Before(w.retry) {
		return w.sub != nil
	}
	making := make(chan struct{})
	w.making = making
	w.mu.Unlock()
	sub, start, pause := w.subscribe(context.WithoutCancel(ctx)) // others wait for it, too
	w.mu.Lock()
	w.making = nil
	close(making)
	switch {
	case sub == nil:
		w.retry = time.Now().Add(pause)
		return false
	case w.closed:
		_ = sub.Close()
		return false
	}
	w.sub, w.start, w.finished = sub, start, make(chan struct{})
	go w.read(sub.ChannelWithSubscriptions(redis.WithChannelHealthCheckInterval(time.Second)))
	return true
}

// subscribe returns a connection that the server has confirmed, and the head start of who
// is called over it; or nil, and how long to leave it at that. What will not mend itself
// is told.
func (w *wakeups) subscribe(ctx context.Context) (sub *redis.PubSub, start, pause time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, w.limit)
	defer cancel()
	sub, start, err := w.trySubscribe(ctx)
	if err == nil {
		return sub, start, 0
	}
	mended, ok := permanent(err)
	if !ok {
		return nil, 0, time.Second
	}
	w.host.Warn(fmt.Errorf("waiters have to ask redis again and again, as it does not let them subscribe: %w", mended))
	return nil, 0, time.Minute
}

func (w *wakeups) trySubscribe(ctx context.Context) (*redis.PubSub, time.Duration, error) {
	start, err := w.headStart(ctx)
	if err != nil {
		return nil, 0, err
	}
	sub := w.client.Subscribe(ctx, w.prefix+w.locker)
	if _, err := sub.ReceiveTimeout(ctx, w.limit); err != nil {
		_ = sub.Close()
		return nil, 0, err
	}
	return sub, start, nil
}

// headStart is how long a waiter is given to take a lock that was released: a moment to
// wake up, and the way of the call and of its request.
func (w *wakeups) headStart(ctx context.Context) (time.Duration, error) {
	const tries = 3
	way := w.most
	for range tries {
		began := time.Now()
		if err := w.client.Process(ctx, once{redis.NewCmd(ctx, "ping")}); err != nil {
			return 0, err
		}
		way = min(way, time.Since(began))
	}
	return min(w.least+2*way, w.most).Truncate(time.Millisecond), nil
}

// read passes on what the server says, until sub is closed.
func (w *wakeups) read(messages <-chan any) {
	defer close(w.finished)
	for m := range messages {
		switch m := m.(type) {
		case *redis.Subscription: // after a time without: what was said then is lost
			w.callAll()
		case *redis.Message:
			w.call(m.Payload)
		}
	}
}

// call reads a message: the request that may ask, and after how many milliseconds.
func (w *wakeups) call(message string) {
	id, ms, _ := strings.Cut(message, " ")
	after, _ := strconv.ParseInt(ms, 10, 32)
	w.mu.Lock()
	defer w.mu.Unlock()
	if call := w.calls[id]; call != nil {
		say(call, time.Duration(after)*time.Millisecond)
	}
}

func (w *wakeups) callAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, call := range w.calls {
		say(call, 0)
	}
}

// say puts after into call, in place of what may not have been heard. It is the only
// one that does, and holds the lock.
func say(call chan time.Duration, after time.Duration) {
	select {
	case call <- after:
		return
	case unheard := <-call:
		after = min(after, unheard)
	}
	call <- after
}

// close ends the connection.
func (w *wakeups) close(ctx context.Context) {
	w.mu.Lock()
	w.closed = true
	sub, finished := w.sub, w.finished
	w.mu.Unlock()
	if sub == nil {
		return
	}
	_ = sub.Close()
	select {
	case <-finished:
	case <-ctx.Done():
	}
}
