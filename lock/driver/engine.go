package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Limits of the engine. What depends on the TTL is computed where it is used.
const (
	callLimit    = 10 * time.Second        // of TryAcquire, Inspect and Release, when ctx has no deadline
	closeLimit   = 1900 * time.Millisecond // of Close, driver's part included
	releaseGrace = 50 * time.Millisecond   // for the answer, when Release's context is done already
)

// engine is a Locker over a Driver.
//
// One mutex guards what is below it; it is never held while a driver, an observer
// or a channel is waited for. One goroutine, the keeper, serves all alarms.
type engine struct {
	d      Driver
	prompt bool // see Prompt
	cfg    lock.Config
	gates  gates

	closing context.Context // ends when Close is called: waits end
	end     context.CancelFunc
	life    context.Context // ends when Close gives up on the server: calls in the background end
	die     context.CancelFunc
	wake    chan struct{} // tells the keeper that there is an earlier alarm
	stopped chan struct{} // closed when the keeper has returned
	closed  chan struct{} // closed when Close has finished

	mu       sync.Mutex
	news     news // to be told once mu is free
	alarms   alarms
	planned  Stamp // what the keeper sleeps until
	sleeping bool
	isClosed bool
	idle     chan struct{} // made by Close; closed when nothing is left to settle

	leases  map[Lease]*lease
	held    map[string]*handle  // by request ID, until the server surely has none of it
	pending map[string]*attempt // by request ID: calls of Driver.Acquire under way

	due     []*lease // whose renewal waits for a free flight
	flights int      // renewals under way that have not timed out
	stuck   int      // renewals that timed out and have not returned

	unsettled map[*settlement]struct{}
	queue     []*settlement // whose next try waits for a free place
	settling  int           // tries under way
}

// New returns a Locker that drives the backend that open opens. open gets the
// engine as the Host of its driver, and may be called before any other method; its
// error is returned as it is. A configuration that is wrong is an error that
// matches [lock.ErrInvalid], and open is not called.
func New(open func(Host) (Driver, error), cfg lock.Config) (lock.Locker, error) {
	cfg, err := cfg.WithDefaults()
	if err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	e := &engine{
		cfg:       cfg,
		wake:      make(chan struct{}, 1),
		stopped:   make(chan struct{}),
		closed:    make(chan struct{}),
		leases:    make(map[Lease]*lease),
		held:      make(map[string]*handle),
		pending:   make(map[string]*attempt),
		unsettled: make(map[*settlement]struct{}),
	}
	e.closing, e.end = context.WithCancel(context.Background())
	e.gates = gates{closing: e.closing.Done(), m: make(map[string]*gate)}
	e.life, e.die = context.WithCancel(context.Background())
	if e.d, err = open(e); err != nil {
		e.die()
		e.end()
		return nil, err
	}
	if p, ok := e.d.(Prompt); ok {
		e.prompt = p.Prompt()
	}
	go e.keep()
	return e, nil
}

func (e *engine) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	return e.acquire(ctx, key, false, opts)
}

func (e *engine) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	return e.acquire(ctx, key, true, opts)
}

func (e *engine) Features() lock.Features { return e.d.Features() }

func (e *engine) Inspect(ctx context.Context, key string) (lock.Info, error) {
	info, err := e.inspect(ctx, key)
	if err != nil {
		return lock.Info{}, fmt.Errorf("holdfast: inspect %q: %w", brief(key), err)
	}
	return info, nil
}

func (e *engine) inspect(ctx context.Context, key string) (lock.Info, error) {
	if err := lock.CheckKey(key); err != nil {
		return lock.Info{}, err
	}
	if e.closing.Err() != nil {
		return lock.Info{}, lock.ErrClosed
	}
	if ctx.Err() != nil {
		return lock.Info{}, ctxError(ctx)
	}
	bounded, cancel := withLimit(ctx, callLimit)
	defer cancel()
	stop := context.AfterFunc(e.closing, cancel)
	defer stop()

	type answer struct {
		info lock.Info
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		info, err := e.d.Inspect(bounded, key)
		answers <- answer{info, err}
	}()
	var a answer
	select {
	case a = <-answers:
	case <-bounded.Done():
		a.err = context.Cause(bounded)
	}
	switch {
	case a.err == nil:
	case e.closing.Err() != nil:
		return lock.Info{}, lock.ErrClosed
	case ended(ctx):
		return lock.Info{}, ctxError(ctx)
	case IsPermanent(a.err):
		return lock.Info{}, a.err
	default:
		return lock.Info{}, unavailable(ownLimit(a.err))
	}
	a.info.Key = key
	a.info.Holders = slices.Clone(a.info.Holders)
	for i := range a.info.Holders {
		if h := &a.info.Holders[i]; h.Token != 0 {
			h.Token += e.cfg.TokenBase
		}
	}
	return a.info, nil
}

// Keep implements Host.
func (e *engine) Keep(l Lease, proved Stamp) {
	e.mu.Lock()
	defer e.unlock()
	now := Now()
	rec := e.leases[l]
	switch {
	case rec == nil:
		rec = e.record(l, true)
	case rec.shared: // announced twice
		return
	case rec.ended: // lost before it was announced: End tells the driver so
		rec.shared = true
		e.settleNow(&settlement{attempt: l.End}, now)
		return
	default: // a grant on it was faster
		rec.shared = true
	}
	if e.isClosed {
		e.endLease(rec, now, lock.ErrClosed)
		return
	}
	e.extend(rec, proved, now)
	rec.plan(e, now)
}

// LeaseLost implements Host.
func (e *engine) LeaseLost(l Lease, cause error) {
	e.mu.Lock()
	defer e.unlock()
	rec := e.leases[l]
	if rec == nil {
		if len(e.pending) == 0 {
			return
		}
		rec = e.record(l, false) // its grant may be on the way: remember that it is worth nothing
	}
	e.loseLease(rec, Now(), true, because("the server ended the lease", cause))
}

// GrantLost implements Host.
func (e *engine) GrantLost(id string, cause error) {
	e.mu.Lock()
	defer e.unlock()
	cause = because("the server removed the lock", cause)
	if h := e.held[id]; h != nil {
		h.lose(e, Now(), cause)
		h.gone = h.state == lost
		h.forget(e)
		return
	}
	if a := e.pending[id]; a != nil {
		a.gone = cause
	}
}

// Warn implements Host.
func (e *engine) Warn(err error) {
	e.mu.Lock()
	defer e.unlock()
	e.post(background, lock.Event{Kind: lock.Warning, Err: err})
}

// inline says whether a caller with that context makes its calls of the driver itself:
// nothing but their deadline can end them.
func (e *engine) inline(ctx context.Context) bool { return e.prompt && ctx.Done() == nil }

// because puts what the engine knows before what the driver said.
func because(what string, cause error) error {
	if cause == nil {
		return errors.New(what)
	}
	return fmt.Errorf("%s: %w", what, cause)
}
