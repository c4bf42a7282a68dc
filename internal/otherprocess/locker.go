package otherprocess

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/process"
	"github.com/holdfast-go/holdfast/lock"
)

// Locker is a [lock.Locker] in a process of its own. While that is stopped, calls wait for
// it; when it has ended, they fail with [lock.ErrUnavailable], and its handles are lost.
//
// Stop and Continue are for the goroutine of the test that the Locker was opened for.
type Locker struct {
	t        testing.TB
	proc     *process.Process
	output   *bytes.Buffer // of the process; read it when that has ended
	caller   *caller
	features lock.Features
	closed   atomic.Bool

	killed, stopped bool
}

const (
	openLimit = time.Minute // a machine may be busy with other tests
	endLimit  = 20 * time.Second
)

// Open opens a Locker by its URL, as [lock.Open] does, in a new process, which ends with the
// test. What configure sets goes before what the URL says. The error is that of the opening:
// a process that cannot be had fails the test.
func Open(t testing.TB, url string, configure ...func(*lock.Config)) (*Locker, error) {
	t.Helper()
	var cfg lock.Config
	for _, c := range configure {
		c(&cfg)
	}
	l, err := start(t, cfg.Observe)
	if err != nil {
		t.Fatalf("otherprocess: %v", err)
	}
	t.Cleanup(l.end)
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	defer cancel()
	a, err := l.caller.call(ctx, request{Op: opOpen, URL: url, Config: config{
		TTL: cfg.TTL, Owner: cfg.Owner, TokenBase: cfg.TokenBase, Observe: cfg.Observe != nil,
	}})
	if err != nil {
		t.Fatalf("otherprocess: the new process: %v; does TestMain call Serve?", err)
	}
	l.features = a.Features
	if a.Err != nil {
		l.closed.Store(true)
		return nil, a.Err.unpack(nil)
	}
	return l, nil
}

// start starts this binary again.
func start(t testing.TB, observe func(context.Context, lock.Event)) (*Locker, error) {
	if os.Getenv(variable) != "" {
		return nil, errors.New("this process should serve; have TestMain call Serve first")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	requests, toRequests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer requests.Close() // the process has its own, and this answers, too
	fromAnswers, answers, err := os.Pipe()
	if err != nil {
		_ = toRequests.Close()
		return nil, err
	}
	defer answers.Close()
	output := new(bytes.Buffer)
	cmd := exec.Command(self)
	// With the race detector, a process would sleep for a second at its end.
	cmd.Env = append(os.Environ(), variable+"=1", "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{requestsFD - 3: requests, answersFD - 3: answers}
	proc, err := process.Start(cmd)
	if err != nil {
		_ = toRequests.Close()
		_ = fromAnswers.Close()
		return nil, err
	}
	return &Locker{t: t, proc: proc, output: output, caller: newCaller(toRequests, fromAnswers, observe)}, nil
}

// end has the process end by itself, which is when the race detector tells what it has seen.
func (l *Locker) end() {
	l.t.Helper()
	if !l.killed && !l.stopped {
		l.leave()
	}
	l.proc.Kill()
	<-l.caller.gone
	l.caller.hangUp()
	if l.output.Len() > 0 {
		l.t.Logf("otherprocess: the process says:\n%s", l.output)
	}
}

func (l *Locker) leave() {
	l.t.Helper()
	if !l.closed.Load() {
		if err := l.Close(); err != nil {
			l.t.Errorf("otherprocess: Close: %v", err)
		}
	}
	l.caller.hangUp()
	select {
	case <-l.proc.Exited():
		if exit, failed := errors.AsType[*exec.ExitError](l.proc.Ended()); failed {
			l.t.Errorf("otherprocess: the process has ended: %v", exit)
		}
	case <-time.After(endLimit):
		l.t.Errorf("otherprocess: the process has not ended within %v", endLimit)
	}
}

// Kill ends the process at once (SIGKILL), stopped or not. When it returns, the kernel has
// taken back all that was the process's.
func (l *Locker) Kill() {
	l.killed = true
	l.proc.Kill()
	<-l.caller.gone
}

// Stop stops the process (SIGSTOP), and returns when none of its threads runs any more.
func (l *Locker) Stop() {
	l.t.Helper()
	if err := l.proc.Pause(); err != nil {
		l.t.Fatalf("otherprocess: the process cannot be stopped: it has %v", err)
	}
	l.stopped = true
}

// Continue lets a process go on that was stopped.
func (l *Locker) Continue() {
	l.t.Helper()
	if err := l.proc.Resume(); err != nil {
		l.t.Fatalf("otherprocess: the process cannot be continued: it has %v", err)
	}
	l.stopped = false
}

// Acquire implements [lock.Locker].
func (l *Locker) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	return l.acquire(ctx, opAcquire, key, opts)
}

// TryAcquire implements [lock.Locker].
func (l *Locker) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	return l.acquire(ctx, opTryAcquire, key, opts)
}

func (l *Locker) acquire(ctx context.Context, o op, key string, opts []lock.Option) (lock.Handle, error) {
	set, bad := lock.Resolve(opts...)
	a, err := l.caller.call(ctx, request{Op: o, Key: key, Settings: set, BadOptions: pack(bad, nil)})
	if err != nil {
		return nil, l.unavailable("acquire", key, err)
	}
	err = a.Err.unpackFor(ctx)
	if a.Handle == 0 {
		return nil, err
	}
	return &handle{
		caller: l.caller, number: a.Handle, key: key, token: a.Token, hasToken: a.HasToken,
		fate: l.caller.fate(a.Handle),
	}, err
}

// Inspect implements [lock.Locker].
func (l *Locker) Inspect(ctx context.Context, key string) (lock.Info, error) {
	a, err := l.caller.call(ctx, request{Op: opInspect, Key: key})
	if err != nil {
		return lock.Info{}, l.unavailable("inspect", key, err)
	}
	return a.Info, a.Err.unpackFor(ctx)
}

// unavailable is the error of a call that the process has not answered.
func (l *Locker) unavailable(what, key string, err error) error {
	kind := lock.ErrUnavailable
	if l.closed.Load() {
		kind = lock.ErrClosed
	}
	return fmt.Errorf("holdfast: %s %q: %w: %w", what, key, kind, err)
}

// Features implements [lock.Locker]: they were asked for when it was opened.
func (l *Locker) Features() lock.Features { return l.features }

// Close implements [lock.Locker]. The process lives on, for its handles to be asked. One that
// has ended has closed all there was.
func (l *Locker) Close() error {
	const limit = 2 * time.Second // as every Locker's
	l.closed.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	a, err := l.caller.call(ctx, request{Op: opClose})
	if errors.Is(err, errEnded) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("holdfast: close: %w: %w", lock.ErrUnavailable, err)
	}
	return a.Err.unpack(nil)
}
