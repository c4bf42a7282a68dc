//go:build unix

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

const (
	// openTimeout bounds how long --no-wait takes to reach the backend;
	// TryAcquire has the same limit of its own.
	openTimeout = 10 * time.Second

	// releaseTimeout bounds how long the end of the command waits for the backend
	// to confirm the release.
	releaseTimeout = 5 * time.Second
)

// job is what to run, and under which lock.
type job struct {
	url   string // with the TTL of the flag
	key   string
	ttl   time.Duration
	wait  time.Duration // for the lock; 0: one try; lock.NoLimit: until it is held
	grace time.Duration
	path  string   // the program's file
	argv  []string // as the user wrote it
}

// runner takes one job through its life: wait for the lock, run, release.
type runner struct {
	*job
	open    opener
	signals chan os.Signal
	tty     terminal
	stderr  io.Writer
	told    bool // of a loss, or that nothing ran which could have lost anything
}

// run runs j. Its error is nil if the program ended with code 0.
func run(j *job, open opener, stderr io.Writer) error {
	r := &runner{job: j, open: open, signals: listen(), tty: openTerminal(), stderr: stderr}
	locker, handle, err := r.acquire()
	if locker != nil {
		defer locker.Close() // bounded by contract; what it frees is freed by the TTL too
	}
	if err != nil {
		return err
	}
	code, err := r.work(handle)
	lost := r.release(handle)
	switch {
	case err != nil: // there was no program that could have lost anything
		return err
	case lost != nil:
		return lost
	case code != 0:
		return &failure{code: code}
	}
	return nil
}

// margin is how long before its end the lock counts as lost.
func (j *job) margin() time.Duration { return j.grace + killTime(j.ttl) }

// acquire opens the backend and waits for the lock. If its error is not nil,
// nothing is held, or it is on its way to being released.
func (r *runner) acquire() (lock.Locker, lock.Handle, error) {
	type result struct {
		locker lock.Locker
		handle lock.Handle
		err    error
	}
	// The context is cancelled by a signal alone: not at the end of this function,
	// in case a backend goes on using it.
	ctx, cancel := context.WithCancelCause(context.Background())
	results := make(chan result, 1)
	go func() {
		locker, handle, err := r.openAndAcquire(ctx)
		results <- result{locker, handle, err}
	}()
	for {
		select {
		case sig := <-r.signals:
			if endsWait(sig) {
				cancel(r.interrupted(sig))
			}
		case res := <-results:
			r.drain(cancel)
			// A signal decides even where the lock was granted meanwhile: no program
			// is started after one.
			stop := context.Cause(ctx)
			if stop == nil {
				return res.locker, res.handle, res.err
			}
			if res.handle != nil {
				r.told = true
				_ = r.release(res.handle)
			}
			return res.locker, nil, stop
		}
	}
}

// drain takes the signals that have arrived by now.
func (r *runner) drain(cancel context.CancelCauseFunc) {
	for {
		select {
		case sig := <-r.signals:
			if endsWait(sig) {
				cancel(r.interrupted(sig))
			}
		default:
			return
		}
	}
}

func (r *runner) interrupted(sig os.Signal) *failure {
	return failf(exitSignal+int(sig.(syscall.Signal)), "signal (%v) while waiting for the lock %q; nothing was started", sig, r.key)
}

// openAndAcquire bounds both steps together by the wait that was asked for.
func (r *runner) openAndAcquire(ctx context.Context) (lock.Locker, lock.Handle, error) {
	start := time.Now()
	locker, err := r.openWithin(ctx)
	if err != nil {
		return nil, nil, unopened(err)
	}
	margin := lock.Margin(r.margin())
	var handle lock.Handle
	switch r.wait {
	case lock.NoLimit:
		handle, err = locker.Acquire(ctx, r.key, margin)
	case 0:
		handle, err = locker.TryAcquire(ctx, r.key, margin)
	default:
		left := max(0, r.wait-time.Since(start))
		handle, err = locker.Acquire(ctx, r.key, margin, lock.Wait(left))
	}
	if err != nil {
		return locker, nil, refusal(r.key, err)
	}
	return locker, handle, nil
}

// openWithin opens the backend, in bounded time if the wait is bounded. A backend
// that cannot be reached may come back within the wait. The timer is stopped as soon
// as the backend is open, so that it cannot end what the backend may have hung on ctx.
func (r *runner) openWithin(ctx context.Context) (lock.Locker, error) {
	limit := r.wait
	switch limit {
	case lock.NoLimit:
		return r.openAgain(ctx)
	case 0:
		limit = openTimeout
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	locker, err := r.openAgain(ctx)
	timer.Stop()
	if err != nil && context.Cause(ctx) != nil {
		err = errors.Join(err, context.Cause(ctx)) // for unopened to see that time ran out
	}
	return locker, err
}

// openAgain opens the backend; one that cannot be reached is tried again until ctx ends,
// unless one try is all that was asked for.
func (r *runner) openAgain(ctx context.Context) (lock.Locker, error) {
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	for pause := shortest; ; pause = min(2*pause, longest) {
		locker, err := r.open(ctx, r.url)
		if err == nil || r.wait == 0 || ctx.Err() != nil || !errors.Is(err, lock.ErrUnavailable) {
			return locker, err
		}
		if pause == shortest && r.wait == lock.NoLimit { // a bounded wait says so at its end
			say(r.stderr, "the backend cannot be reached; waiting for it (%s)", plain(err))
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// work runs the program and returns its exit code when it has ended.
func (r *runner) work(h lock.Handle) (int, error) {
	if err := h.Err(); err != nil {
		r.told = true
		return 0, failf(exitLost, "the lock %q was lost at once; nothing was started: try again (%s)", r.key, plain(err))
	}
	c, err := startChild(r.path, r.argv, r.environment(h))
	if err != nil {
		return 0, cannotStart(r.argv[0], err)
	}
	r.tty.adopt(c)
	defer r.tty.takeBack(c)
	return ended(r.supervise(h, c)), nil
}

// environment is holdfast's own with what the program should know of its lock.
// Values of a holdfast around this one are replaced, and a token that this
// backend cannot give is removed: an old one would be a lie.
func (r *runner) environment(h lock.Handle) []string {
	const key, token = "HOLDFAST_KEY=", "HOLDFAST_TOKEN="
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, key) && !strings.HasPrefix(v, token) {
			env = append(env, v)
		}
	}
	env = append(env, key+r.key)
	if t, ok := h.Token(); ok {
		env = append(env, token+strconv.FormatUint(uint64(t), 10))
	}
	return env
}

// supervise returns when the program has ended. Until then it forwards signals,
// follows the terminal's job control, and ends the program if the lock is lost.
func (r *runner) supervise(h lock.Handle, c *child) syscall.WaitStatus {
	lost := h.Lost()
	var killAt time.Time
	for {
		select {
		case sig := <-r.signals:
			c.signal(sig.(syscall.Signal))
		case <-lost:
			lost = nil
			killAt = r.terminate(h, c)
		case ws := <-c.changes:
			if ws.Stopped() {
				r.stopped(h, c, ws.StopSignal())
				continue
			}
			if h.Err() != nil {
				if killAt.IsZero() { // both at once, and select chose the end
					killAt = r.terminate(h, c)
				}
				c.endGroup(killAt, killTime(r.ttl))
			}
			return ws
		}
	}
}

// terminate asks the program to end, because the lock is lost, and sees to it that
// it does. It returns when it will be killed: the lock was acquired with a margin
// for that. Nothing may delay the kill, not even a stderr that nobody reads.
func (r *runner) terminate(h lock.Handle, c *child) (killAt time.Time) {
	killAt = time.Now().Add(r.grace)
	c.killLater(r.grace)
	c.signal(syscall.SIGTERM)
	c.signal(syscall.SIGCONT) // a stopped process cannot obey
	r.tellLoss(h.Err(), "; stopping it")
	return killAt
}

func (r *runner) tellLoss(err error, action string) {
	if !r.told {
		say(r.stderr, "the lock %q was lost while %q ran%s: check what it did last before it runs again (%s)", r.key, r.argv[0], action, plain(err))
	}
	r.told = true
}

// release gives the lock up; all that it protected has ended. Its error is the
// loss of the lock, if it was lost before. An outcome that is not known changes
// nothing for the program, which had the lock until its end.
func (r *runner) release(h lock.Handle) error {
	limit := releaseTimeout
	if h.Err() != nil { // it ends by itself, when the margin is over
		limit = min(limit, r.margin())
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := h.Release(ctx)
	switch {
	case err == nil:
	case errors.Is(err, lock.ErrLost):
		r.tellLoss(err, "")
		return &failure{code: exitLost}
	default:
		say(r.stderr, "warning: the release of the lock %q was not confirmed; others may have to wait up to %v for it (%s)", r.key, r.ttl, plain(err))
	}
	return nil
}
