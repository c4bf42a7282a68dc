package redislock

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// funnel has the requests of many callers share a round trip. A request goes out by itself
// as long as few are under way; those that come while the connections are busy go out
// together. So one caller loses nothing by it, and a crowd costs neither a
// connection nor a system call each.
type funnel struct {
	client redis.UniversalClient
	limit  time.Duration // of one round trip

	mu      sync.Mutex
	single  int       // requests under way by themselves
	batches int       // round trips of several under way
	queue   []*queued // for the next one
}

const (
	mostSingle  = 2
	mostBatches = 2   // so that a connection that hangs does not keep everybody
	mostInBatch = 128 // the answers come when the server has done all
)

// queued is a request in the queue.
type queued struct {
	call *call
	done chan struct{} // closed when it was answered, or could not be
}

// run makes c, and returns its reply. If ctx ends first, the error is ctx's, marked if the
// request was not sent.
func (f *funnel) run(ctx context.Context, c *call) (any, error) {
	f.mu.Lock()
	if f.single < mostSingle && len(f.queue) == 0 {
		f.single++
		f.mu.Unlock()
		defer f.leave() // after a panic in a hook of the client's, too
		c.run(ctx, f.client)
		return c.reply, c.err
	}
	q := &queued{call: c, done: make(chan struct{})}
	f.queue = append(f.queue, q)
	f.startBatch()
	f.mu.Unlock()
	select {
	case <-q.done:
		return c.reply, c.err
	case <-ctx.Done():
	}
	if f.withdraw(q) {
		return nil, driver.Refused(ctx.Err())
	}
	return nil, ctx.Err()
}

// leave ends a request that went out by itself.
func (f *funnel) leave() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.single--
	f.startBatch()
}

// startBatch has the queue sent, unless enough is under way. f is locked.
func (f *funnel) startBatch() {
	if len(f.queue) > 0 && f.batches < mostBatches {
		f.batches++
		go f.sendBatches()
	}
}

// sendBatches sends what is in the queue, and what joins it meanwhile.
func (f *funnel) sendBatches() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.queue) > 0 {
		n := min(len(f.queue), mostInBatch)
		batch := slices.Clone(f.queue[:n])
		f.queue = slices.Delete(f.queue, 0, n)
		f.mu.Unlock()
		f.send(batch)
		f.mu.Lock()
	}
	f.batches--
}

// send makes one round trip. Callers that give up do not end it: others wait for it, too.
func (f *funnel) send(batch []*queued) {
	ctx, cancel := context.WithTimeout(context.Background(), f.limit)
	defer cancel()
	calls := make([]*call, len(batch))
	for i, q := range batch {
		calls[i] = q.call
	}
	runAll(ctx, f.client, calls)
	for _, q := range batch {
		close(q.done)
	}
}

// withdraw takes q out of the queue. false: it has gone out.
func (f *funnel) withdraw(q *queued) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := slices.Index(f.queue, q)
	if i < 0 {
		return false
	}
	f.queue = slices.Delete(f.queue, i, i+1)
	return true
}
