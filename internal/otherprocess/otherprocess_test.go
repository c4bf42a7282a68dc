package otherprocess_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/otherprocess"
	"github.com/holdfast-go/holdfast/lock"
)

func open(t *testing.T, configure ...func(*lock.Config)) *otherprocess.Locker {
	t.Helper()
	l, err := otherprocess.Open(t, "stub:", configure...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func acquire(t *testing.T, l lock.Locker, key string) lock.Handle {
	t.Helper()
	h, err := l.Acquire(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// matches checks that err matches want, and no other of the known errors.
func matches(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want an error that matches %q", what, err, w)
		}
	}
	for _, k := range known {
		if errors.Is(err, k) && !slices.Contains(want, k) {
			t.Errorf("%s: %v, want an error that does not match %q", what, err, k)
		}
	}
}

func says(t *testing.T, what string, err error, want string) {
	t.Helper()
	if fmt.Sprint(err) != want {
		t.Errorf("%s: %v, want %q", what, err, want)
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	l := open(t)
	for i, k := range known {
		_, err := l.Acquire(t.Context(), fmt.Sprint("fail ", i))
		matches(t, k.Error(), err, k)
		says(t, k.Error(), err, "stub: "+k.Error())
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	l, err := otherprocess.Open(t, "stub:refuse?ttl=3s&owner=the+URL%27s&token_base=7", func(c *lock.Config) {
		c.TTL, c.Owner = -1, "two\nlines"
	})
	matches(t, "Open", err, lock.ErrInvalid)
	says(t, "Open", err, "holdfast: open: invalid: ttl -1ns, owner \"two\\nlines\", base 7")
	if l != nil {
		t.Error("Open returned a Locker, too")
	}
	if got := open(t).Features(); got != lock.Fencing|lock.FIFO {
		t.Errorf("Features() = %v", got)
	}
}

func TestIsAnotherProcess(t *testing.T) {
	t.Parallel()
	a, b := open(t), open(t)
	var pids []int
	for _, l := range []lock.Locker{a, b} {
		info, err := l.Inspect(t.Context(), "k\xff")
		if err != nil || info.Key != "k\xff" {
			t.Errorf("Inspect: %+v, %v", info, err)
		}
		pids = append(pids, info.Waiters)
	}
	if pids[0] == pids[1] || slices.Contains(pids, os.Getpid()) || slices.Contains(pids, 0) {
		t.Errorf("processes %d and %d, and the test's is %d", pids[0], pids[1], os.Getpid())
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	l := open(t)
	_, err := l.Acquire(t.Context(), "settings")
	says(t, "no options", err, fmt.Sprintf("settings %+v", lock.Settings{Wait: lock.NoLimit}))
	_, err = l.TryAcquire(t.Context(), "k", lock.Wait(0), lock.Shared(), lock.MaxHold(1<<63-1), lock.Margin(time.Second))
	says(t, "all options", err, fmt.Sprintf("try k %+v", lock.Settings{Mode: lock.ModeShared, MaxHold: 1<<63 - 1, Margin: time.Second}))
	_, err = l.TryAcquire(t.Context(), "k", lock.Wait(0), nil)
	matches(t, "a nil option", err, lock.ErrInvalid)
	says(t, "a nil option", err, "stub: invalid: option 2 is nil; leave it out")
}

func TestContexts(t *testing.T) {
	t.Parallel()
	l := open(t)
	_, err := l.Acquire(context.Background(), "context")
	says(t, "the background", err, "endless true, deadline false "+time.Until(time.Time{}).Round(time.Minute).String())
	ctx, stop := context.WithTimeout(t.Context(), time.Hour)
	defer stop()
	_, err = l.Acquire(ctx, "context")
	says(t, "an hour", err, "endless false, deadline true 1h0m0s")

	cause := errors.New("the user went home")
	lost := fmt.Errorf("the other one: %w", lock.ErrLost)
	for name, c := range map[string]struct {
		ctx  func() (context.Context, context.CancelFunc)
		end  bool
		want []error
	}{
		"cancelled":            {func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) }, true, []error{context.Canceled}},
		"cancelled, why":       {withCause(t, cause), true, []error{context.Canceled, cause}},
		"cancelled by a loss":  {withCause(t, lost), true, []error{context.Canceled, lock.ErrLost, lost}},
		"a deadline":           {withTimeout(t, 20*time.Millisecond, nil), false, []error{context.DeadlineExceeded}},
		"a deadline, why":      {withTimeout(t, 20*time.Millisecond, cause), false, []error{context.DeadlineExceeded, cause}},
		"a deadline that was":  {withTimeout(t, -time.Second, nil), false, []error{context.DeadlineExceeded}},
		"a deadline, late":     {late(t, cause), false, []error{context.DeadlineExceeded, cause}},
		"cancelled beforehand": {withTimeout(t, time.Hour, nil), true, []error{context.Canceled}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, end := c.ctx()
			defer end()
			if name == "cancelled beforehand" {
				end()
			} else if c.end {
				time.AfterFunc(20*time.Millisecond, end)
			}
			began := time.Now()
			_, err := l.Acquire(ctx, "wait")
			matches(t, "Acquire", err, c.want...)
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("Acquire returned after %v: the end of the context did not come to the process", took)
			}
		})
	}
}

func withCause(t *testing.T, cause error) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancelCause(t.Context())
		return ctx, func() { cancel(cause) }
	}
}

// late is a context that ends well after its deadline, as on a machine that is busy: the process
// has seen the deadline by then.
func late(t *testing.T, cause error) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) {
		ctx, end := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, cause)
		return overdue{ctx, time.Now().Add(20 * time.Millisecond)}, end
	}
}

type overdue struct {
	context.Context
	deadline time.Time
}

func (o overdue) Deadline() (time.Time, bool) { return o.deadline, true }

func withTimeout(t *testing.T, d time.Duration, cause error) func() (context.Context, context.CancelFunc) {
	return func() (context.Context, context.CancelFunc) {
		return context.WithTimeoutCause(t.Context(), d, cause)
	}
}

func TestHandle(t *testing.T) {
	t.Parallel()
	l := open(t)
	h := acquire(t, l, "k")
	if token, ok := h.Token(); h.Key() != "k" || token != 1<<63+1 || !ok {
		t.Errorf("key %q, token %d, %v", h.Key(), token, ok)
	}
	if v := h.Valid(); h.Err() != nil || v <= 59*time.Minute || v > time.Hour {
		t.Errorf("Err() = %v, Valid() = %v", h.Err(), v)
	}
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	matches(t, "Release with a cancelled context", h.Release(dead), context.Canceled)
	matches(t, "Err", h.Err(), lock.ErrReleased)
	says(t, "Err", h.Err(), `stub: "k": lock released`)
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
	select {
	case <-h.Lost():
		t.Error("Lost is closed after Release")
	default:
	}

	h = acquire(t, l, "lose it")
	select {
	case <-h.Lost():
	case <-time.After(20 * time.Second):
		t.Fatal("Lost is not closed")
	}
	matches(t, "Err", h.Err(), lock.ErrLost)
	matches(t, "Release", h.Release(t.Context()), lock.ErrLost)
	if v := h.Valid(); v != 0 {
		t.Errorf("Valid() = %v after the loss", v)
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	l := open(t)
	held, released, lost := acquire(t, l, "a"), acquire(t, l, "b"), acquire(t, l, "lose c")
	if err := released.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-lost.Lost()
	matches(t, "Err", lost.Err(), lock.ErrLost)
	waiting := make(chan error)
	go func() {
		_, err := l.Acquire(t.Context(), "wait")
		waiting <- err
	}()
	l.Stop()
	l.Kill()
	matches(t, "a wait at the death of the process", <-waiting, lock.ErrUnavailable)
	select {
	case <-held.Lost():
	default:
		t.Error("Lost is open after the death of the process")
	}
	matches(t, "Err", held.Err(), lock.ErrLost)
	matches(t, "Release", held.Release(t.Context()), lock.ErrLost)
	if v := held.Valid(); v != 0 {
		t.Errorf("Valid() = %v after the death of the process", v)
	}
	matches(t, "Err of what was lost before", lost.Err(), lock.ErrLost)
	matches(t, "Err of what was released before", released.Err(), lock.ErrReleased)
	if err := released.Release(t.Context()); err != nil {
		t.Errorf("Release of what was released before: %v", err)
	}
	select {
	case <-released.Lost():
		t.Error("Lost of what was released before is closed")
	default:
	}
	_, err := l.TryAcquire(t.Context(), "k")
	matches(t, "TryAcquire", err, lock.ErrUnavailable)
	_, err = l.Inspect(t.Context(), "k")
	matches(t, "Inspect", err, lock.ErrUnavailable)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
	_, err = l.TryAcquire(t.Context(), "k")
	matches(t, "TryAcquire after Close", err, lock.ErrClosed)
}

// What a stopped process grants when it goes on, to nobody who waits for it, is given back.
func TestStop(t *testing.T) {
	t.Parallel()
	l := open(t)
	h := acquire(t, l, "k")
	l.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "k")
	matches(t, "Acquire from a process that is stopped", err, lock.ErrUnavailable, context.DeadlineExceeded)
	l.Continue()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		info, err := l.Inspect(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if len(info.Holders) == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d are held, want the first alone", len(info.Holders))
		}
	}
	if err := h.Err(); err != nil {
		t.Errorf("Err of the first: %v", err)
	}
}

// An observer is told with the context of the call, before that comes back, and may ask.
func TestEvents(t *testing.T) {
	t.Parallel()
	type key struct{}
	cause := errors.New("the user went home")
	ctx, cancel := context.WithCancelCause(context.WithValue(t.Context(), key{}, "mine"))
	defer cancel(nil)
	var mu sync.Mutex
	var got []string
	var l *otherprocess.Locker
	l = open(t, func(c *lock.Config) {
		c.Observe = func(ctx context.Context, ev lock.Event) {
			if _, err := l.Inspect(context.Background(), "k"); err != nil {
				t.Errorf("Inspect by the observer: %v", err)
			}
			mu.Lock()
			got = append(got, fmt.Sprint(ev.Kind, " ", ev.Key, " ", ctx.Value(key{}), " ", errors.Is(ev.Err, cause)))
			mu.Unlock()
			cancel(cause)
		}
	})
	_, err := l.Acquire(ctx, "wait")
	matches(t, "Acquire", err, context.Canceled, cause)
	if want := []string{"contended wait mine false", "failed wait mine true"}; !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// recorder is a test whose failures are looked at.
type recorder struct {
	testing.TB
	cleanups []func()
	said     strings.Builder
}

func (r *recorder) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Logf(format string, args ...any)   { fmt.Fprintf(&r.said, format+"\n", args...) }
func (r *recorder) Errorf(format string, args ...any) { r.Logf("FAIL "+format, args...) }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }

// A process that ends by itself before it should fails the test, with what it said.
func TestCrash(t *testing.T) {
	t.Parallel()
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		l, err := otherprocess.Open(r, "stub:panic")
		if err == nil {
			_, _ = l.Acquire(t.Context(), "wait")
		}
	}()
	<-done
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	for _, want := range []string{"FAIL", "at the disco"} {
		if !strings.Contains(r.said.String(), want) {
			t.Errorf("the test says %q, want something of %q", r.said.String(), want)
		}
	}
}

const abandonedVariable = "OTHERPROCESS_TEST_ABANDONED"

// A test that is killed leaves no process, and be that stopped.
func TestKilledTestLeavesNothing(t *testing.T) {
	if os.Getenv(abandonedVariable) != "" {
		for _, stop := range []bool{false, true} {
			l := open(t)
			info, err := l.Inspect(t.Context(), "k")
			fmt.Println("process", info.Waiters, err)
			if stop {
				l.Stop()
			}
		}
		fmt.Println("done")
		select {}
	}
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a process that is stopped with its parent")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledTestLeavesNothing$") //nolint:gosec // itself
	cmd.Env = append(os.Environ(), abandonedVariable+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pids []int
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "done"; {
		var pid int
		if n, _ := fmt.Sscanf(lines.Text(), "process %d", &pid); n == 1 {
			pids = append(pids, pid)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(pids) != 2 {
		t.Fatalf("%d processes were started, want 2", len(pids))
	}
	for _, pid := range pids {
		for end := time.Now().Add(20 * time.Second); !ended(pid); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("process %d lives", pid)
			}
		}
	}
}

// ended says whether a process is no more. Nobody may have waited for it: then it is a zombie.
func ended(pid int) bool {
	if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z")
}
