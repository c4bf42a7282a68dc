//go:build unix

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// releaseTimeout bounds how long the end of the command waits for the backend to
// confirm the release.
const releaseTimeout = 5 * time.Second

// job is what to run, and under which lock.
type job struct {
	key     string
	ttl     time.Duration
	wait    time.Duration // for the lock; 0: one try; lock.NoLimit: until it is held
	grace   time.Duration
	maxHold time.Duration // 0: no limit
	path    string        // the program's file
	argv    []string      // as the user wrote it
}

// runner takes one job through its life: wait for the lock, run, release.
type runner struct {
	*job
	*service // its URL has the TTL of the flag
	signals  chan os.Signal
	tty      terminal
	told     bool // of a loss, or that nothing ran which could have lost anything
}

// run runs j. Its error is nil if the program ended with code 0.
func run(j *job, s *service) error {
	s.report.hurry = hurry()
	s.report.bounded = j.wait != lock.NoLimit
	r := &runner{job: j, service: s, signals: listen(), tty: openTerminal()}
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
	locker, err := r.openWithin(ctx, r.wait)
	if err != nil {
		return nil, nil, unopened(err)
	}
	options := []lock.Option{lock.Margin(r.margin()), lock.MaxHold(r.maxHold)}
	var handle lock.Handle
	switch r.wait {
	case lock.NoLimit:
		handle, err = locker.Acquire(ctx, r.key, options...)
	case 0:
		handle, err = locker.TryAcquire(ctx, r.key, options...)
	default:
		left := max(0, r.wait-time.Since(start))
		handle, err = locker.Acquire(ctx, r.key, append(options, lock.Wait(left))...)
	}
	if err != nil {
		return locker, nil, refusal(r.key, err)
	}
	return locker, handle, nil
}

// work runs the program and returns its exit code when it has ended.
func (r *runner) work(h lock.Handle) (int, error) {
	// Before the program starts: whoever is stopped right after it must know this.
	until := provedUntil(h, driver.Now())
	switch err := h.Err(); {
	case errors.Is(err, lock.ErrMaxHold):
		r.told = true
		return 0, failf(exitLost, "--max-hold %v was over before %q could start; nothing was started: allow it more time", r.maxHold, r.argv[0])
	case err != nil:
		r.told = true
		return 0, failf(exitLost, "the lock %q was lost at once; nothing was started: try again (%s)", r.key, plain(err))
	}
	c, err := startChild(r.path, r.argv, r.environment(h))
	if err != nil {
		return 0, cannotStart(r.argv[0], err)
	}
	r.report.event(slog.LevelInfo, "started", slog.Int("pid", c.pid))
	r.tty.adopt(c)
	defer r.tty.takeBack(c)
	code := ended(r.supervise(h, c, until))
	r.report.event(slog.LevelInfo, "ended", slog.Int("pid", c.pid), slog.Int("exit_code", code))
	return code, nil
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
// follows the terminal's job control, and ends the program if the lock is lost, which was
// proved until then.
func (r *runner) supervise(h lock.Handle, c *child, until driver.Stamp) syscall.WaitStatus {
	lost := h.Lost()
	looks := time.NewTicker(r.ttl / looksPerTTL)
	defer looks.Stop()
	var killAt time.Time
	for {
		select {
		case <-looks.C:
			until = provedUntil(h, until)
			if lost == nil {
				c.strays.look(c)
			}
		case sig := <-r.signals:
			c.signal(sig.(syscall.Signal))
			r.report.event(slog.LevelInfo, "signal", slog.String("signal", sig.String()))
		case <-lost:
			lost = nil
			killAt = r.terminate(h, c, until)
		case ws := <-c.changes:
			if ws.Stopped() {
				r.stopped(h, c, ws.StopSignal())
				continue
			}
			if h.Err() != nil {
				if killAt.IsZero() { // both at once, and select chose the end
					killAt = r.terminate(h, c, until)
				}
				c.endTree(killAt, killTime(r.ttl))
			}
			return ws
		}
	}
}

// terminate asks the program to end, because the lock is lost, and sees to it that
// it does. It returns when it will be killed: the lock was acquired with a margin
// for that, and what of it has passed is no grace any more. Nothing may delay the
// kill, not even a stderr that nobody reads.
func (r *runner) terminate(h lock.Handle, c *child, until driver.Stamp) (killAt time.Time) {
	late := max(0, driver.Now().Sub(until))
	grace := max(0, r.grace-late)
	killAt = time.Now().Add(grace)
	c.strays.look(c) // before one of their parents obeys, and they are nobody's
	c.killLater(grace)
	if grace > 0 {
		c.signalTree(syscall.SIGTERM)
		c.signalTree(syscall.SIGCONT) // a stopped process cannot obey
	}
	action := "; stopping it"
	if c.foreign() {
		action = "; it runs as another user, and cannot be stopped"
	}
	r.tellLoss(h.Err(), action)
	return killAt
}

// looksPerTTL is how often to look until when the lock is proved. Renewals come less often.
const looksPerTTL = 16

// provedUntil returns until when the lock is proved, or before if it is lost. Whoever was
// stopped, or suspended with the machine, learns of the loss too late, when somebody else
// may be at work; how much too late, the lock itself does not tell. It counts from before
// it asks, in case this process is stopped in between. A renewal that it has not seen yet
// makes it too early, but that matters only if this process is stopped right after it.
func provedUntil(h lock.Handle, before driver.Stamp) driver.Stamp {
	now := driver.Now()
	if left := h.Valid(); left > 0 {
		return now.Add(left)
	}
	return before
}

func (r *runner) tellLoss(err error, action string) {
	switch {
	case r.told:
	case errors.Is(err, lock.ErrMaxHold):
		r.report.say(slog.LevelError, "%q ran longer than --max-hold %v%s: allow it more time, or find out what it waits for", r.argv[0], r.maxHold, action)
	default:
		r.report.say(slog.LevelError, "the lock %q was lost while %q ran%s: check what it did last before it runs again (%s)", r.key, r.argv[0], action, plain(err))
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
	r.report.awaitReleased()
	switch {
	case err == nil:
	case errors.Is(err, lock.ErrLost):
		r.tellLoss(err, "")
		return &failure{code: exitLost}
	default:
		r.report.say(slog.LevelWarn, "the release of the lock %q was not confirmed; others may have to wait up to %v for it (%s)", r.key, r.ttl, plain(err))
	}
	return nil
}
