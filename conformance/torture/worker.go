package torture

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// job is what a worker is told. It travels to processes in the environment.
type job struct {
	Who      string
	URL      string
	TTL      time.Duration
	Seed     uint64
	Life     uint64 // no other life of the run has the same number
	Keys     []string
	Slots    int    // goroutines that share the Locker
	Resource string // the path of its socket
	Shared   bool   // the backend has shared locks
	Suicides bool   // the process may kill itself
}

// jobVariable marks a process as a worker.
const jobVariable = "HOLDFAST_TORTURE_JOB"

// logDescriptor is the log, in a worker.
const logDescriptor = 3

// Main makes this process do the work of a worker, and end, if it was started as one.
// Call it first in TestMain.
func Main() {
	text := os.Getenv(jobVariable)
	if text == "" {
		return
	}
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", err)
		os.Exit(1)
	}
	stop := make(chan struct{})
	go func() {
		// The test closes it when it is time to end, and so does its death.
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	open := func(ctx context.Context) (lock.Locker, error) {
		return lock.Open(ctx, j.URL, func(c *lock.Config) { c.TTL, c.Owner = j.TTL, j.Who })
	}
	w := &worker{job: j, log: &log{w: os.NewFile(logDescriptor, "log")}, open: open}
	if err := w.run(stop); err != nil {
		fmt.Fprintln(os.Stderr, "torture:", j.Who+":", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// worker lives one life.
type worker struct {
	job
	log    *log
	open   func(context.Context) (lock.Locker, error)
	locker lock.Locker
	ctx    context.Context // ends when it is time to end
	ops    atomic.Uint64
	values atomic.Uint64
}

// run works until stop is closed, and then shows that all is well again.
func (w *worker) run(stop <-chan struct{}) error {
	var cancel context.CancelFunc
	w.ctx, cancel = context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-stop
		cancel()
	}()
	ended := make(chan struct{})
	var pulsing sync.WaitGroup
	pulsing.Go(func() { pulse(w.log, w.Who, ended) })
	defer pulsing.Wait()
	defer close(ended)

	if err := w.connect(); err != nil {
		return err
	}
	var slots sync.WaitGroup
	errs := make(chan error, w.Slots)
	for i := range w.Slots {
		slots.Go(func() {
			if err := w.live(rand.New(rand.NewPCG(w.Seed, uint64(i)))); err != nil { //nolint:gosec // a small number
				errs <- err
			}
		})
	}
	slots.Wait()
	w.finish()
	w.say(Event{Kind: Close})
	err := w.locker.Close()
	w.say(Event{Kind: Closed, Err: outcome(err)})
	close(errs)
	return errors.Join(err, <-errs)
}

// say logs an event of this worker.
func (w *worker) say(e Event) {
	e.Who = w.Who
	w.log.add(e)
}

// connect opens the Locker. The server may be out of reach for a while.
func (w *worker) connect() error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		l, err := w.open(ctx)
		cancel()
		switch {
		case err == nil:
			w.locker = l
			return nil
		case !errors.Is(err, lock.ErrUnavailable):
			return err
		}
		select {
		case <-w.ctx.Done():
			// One last time: whoever ends us has healed all first.
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			w.locker, err = w.open(ctx)
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// finish takes and frees every lock once more, as every worker does, when all is healed:
// nothing that was left behind may keep it out.
func (w *worker) finish() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*w.TTL+10*time.Second)
	defer cancel()
	for _, key := range w.Keys {
		err := w.once(ctx, key)
		w.say(Event{Kind: Final, Key: key, Err: outcome(err), Text: unknown(err)})
	}
}

// once acquires and releases.
func (w *worker) once(ctx context.Context, key string) error {
	op := w.ops.Add(1)
	w.say(Event{Kind: Acquire, Op: op, Key: key})
	handle, err := w.locker.Acquire(ctx, key)
	if err != nil {
		w.say(Event{Kind: Failed, Op: op, Key: key, Err: outcome(err)})
		return err
	}
	h := w.held(handle, op, false)
	h.granted(now(), 0)
	h.say(Event{Kind: Release})
	err = h.Release(ctx)
	h.say(Event{Kind: Released, Err: outcome(err)})
	return err
}

// outcome names an error, for the log.
func outcome(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, lock.ErrMaxHold):
		return errMaxHold
	case errors.Is(err, lock.ErrLost):
		return errLost
	case errors.Is(err, lock.ErrClosed):
		return errClosed
	case errors.Is(err, lock.ErrUnavailable):
		return errUnavailable
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return errEnded
	case errors.Is(err, lock.ErrHeld):
		return errHeld
	}
	return errOther + err.Error()
}

// unknown is the text of an error that says that the outcome is not known.
func unknown(err error) string {
	if outcome(err) == errUnavailable {
		return err.Error()
	}
	return ""
}

// upTo returns a time below d.
func upTo(rng *rand.Rand, d time.Duration) time.Duration {
	return time.Duration(rng.Int64N(max(1, int64(d))))
}

// live is the life of one goroutine.
func (w *worker) live(rng *rand.Rand) error {
	pen, err := newPen(w.Resource)
	if err != nil {
		return err
	}
	defer func() { _ = pen.conn.Close() }()
	for w.ctx.Err() == nil {
		if h := w.acquire(rng, pen); h != nil {
			h.hold()
			h.release()
		}
		w.sleep(upTo(rng, w.TTL/20))
	}
	return nil
}

func (w *worker) sleep(d time.Duration) {
	select {
	case <-w.ctx.Done():
	case <-time.After(d):
	}
}

// acquire tries or waits for some key, in some way.
func (w *worker) acquire(rng *rand.Rand, pen *pen) *hold {
	key := w.Keys[rng.IntN(len(w.Keys))]
	op := w.ops.Add(1)
	ctx, cancel, opts, try := w.way(rng)
	defer cancel()
	var limit time.Duration
	if rng.IntN(20) == 0 {
		limit = 1 + upTo(rng, w.TTL)
		opts = append(opts, lock.MaxHold(limit))
	}
	shared := w.Shared && rng.IntN(4) == 0
	if shared {
		opts = append(opts, lock.Shared())
	}
	var ended atomic.Int64
	context.AfterFunc(ctx, func() { ended.Store(now()) })
	acquire := w.locker.Acquire
	if try {
		acquire = w.locker.TryAcquire
	}
	w.say(Event{Kind: Acquire, Op: op, Key: key, Shared: shared, Try: try})
	handle, err := acquire(ctx, key, opts...)
	if err != nil {
		at := now()
		w.say(Event{At: at, Kind: Failed, Op: op, Key: key, Until: ended.Load(), Err: outcome(err), Text: unknown(err)})
		return nil
	}
	at := now()
	h := w.held(handle, op, shared)
	h.rng, h.pen = rng, pen
	h.granted(at, limit)
	go h.watch()
	return h
}

// way chooses how to acquire, and for how long to wait.
func (w *worker) way(rng *rand.Rand) (ctx context.Context, cancel context.CancelFunc, opts []lock.Option, try bool) {
	ctx, cancel = context.WithCancel(w.ctx)
	patience := upTo(rng, []time.Duration{w.TTL / 4, w.TTL, 4 * w.TTL}[rng.IntN(3)])
	switch n := rng.IntN(20); {
	case n < 6:
		try = true
	case n < 10:
		opts = append(opts, lock.Wait(patience))
	case n < 15: // the deadline is known to those who are asked
		ctx, cancel = context.WithTimeout(w.ctx, patience)
	case n < 19: // the end comes out of the blue
		timer := time.AfterFunc(patience, cancel)
		end := cancel
		cancel = func() { timer.Stop(); end() }
	default: // it is over at once, or before
		ctx, cancel = context.WithTimeout(w.ctx, upTo(rng, time.Millisecond))
	}
	if rng.IntN(10) == 0 {
		opts = append(opts, lock.Margin(marginOf(w.TTL)))
	}
	return ctx, cancel, opts, try
}

// marginOf is the margin that some acquisitions ask for.
func marginOf(ttl time.Duration) time.Duration { return ttl / 8 }
