package filelock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/otherprocess"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

// openOther opens a Locker in a process of its own.
func openOther(t *testing.T, dir string, configure ...func(*lock.Config)) *otherprocess.Locker {
	t.Helper()
	configure = append(configure, func(c *lock.Config) { c.TTL, c.Owner = ttl, "another process" })
	l, err := otherprocess.Open(t, "file://"+dir, configure...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// waiters counts who has found the lock taken, and waits for it.
type waiters chan struct{}

func (w waiters) count(c *lock.Config) {
	c.Observe = func(_ context.Context, ev lock.Event) {
		if ev.Kind == lock.Contended {
			w <- struct{}{}
		}
	}
}

func (w waiters) await(n int) {
	for range n {
		<-w
	}
}

// waitFor waits for the lock in the background. The channel brings its handle, or is closed
// if there is none.
func waitFor(ctx context.Context, t *testing.T, l lock.Locker) <-chan lock.Handle {
	came := make(chan lock.Handle, 1)
	go func() {
		defer close(came)
		h, err := l.Acquire(ctx, "k", lock.Wait(30*time.Second))
		switch {
		case err == nil:
			came <- h
		case ctx.Err() == nil:
			t.Errorf("Acquire: %v", err)
		}
	}()
	return came
}

// shows checks what Inspect says: h's holder in another process, or nobody.
func shows(t *testing.T, l lock.Locker, h lock.Handle) {
	t.Helper()
	info, err := l.Inspect(t.Context(), "k")
	if err != nil || h == nil && len(info.Holders) > 0 || h != nil && len(info.Holders) != 1 {
		t.Errorf("Inspect: %+v, %v; somebody holds it: %v", info, err, h != nil)
		return
	}
	if h == nil {
		return
	}
	token, _ := h.Token()
	if is := info.Holders[0]; is.Owner != "another process" || is.Token != token || time.Since(is.Since).Abs() > time.Minute {
		t.Errorf("Inspect: %+v, want the other process with token %d", is, token)
	}
}

func busy(t *testing.T, l lock.Locker) {
	t.Helper()
	_, err := l.TryAcquire(t.Context(), "k")
	matches(t, "TryAcquire of a lock that is held", err, lock.ErrHeld)
}

// newer checks that a token is greater than the last one, and returns it.
func newer(t *testing.T, h lock.Handle, last lock.Token) lock.Token {
	t.Helper()
	token, _ := h.Token()
	if token <= last {
		t.Errorf("token %d after %d", token, last)
	}
	return token
}

// What a process holds that is killed is free at once, running or stopped, and others see so.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, third := open(t, dir), openOther(t, dir)
	var last lock.Token
	for round := range 6 {
		holder := openOther(t, dir)
		h, _ := acquire(t, holder)
		last = newer(t, h, last)
		busy(t, l)
		busy(t, third)
		shows(t, third, h)
		if round%2 == 1 {
			holder.Stop()
		}
		holder.Kill()
		matches(t, "Err of a holder that was killed", h.Err(), lock.ErrLost)
		if round < 3 { // or nobody looks
			shows(t, third, nil)
		}
		next, err := []lock.Locker{l, third}[round%2].TryAcquire(t.Context(), "k")
		if err != nil {
			t.Fatalf("TryAcquire after a kill: %v", err)
		}
		last = newer(t, next, last)
		release(t, next)
	}
}

// Nor does Inspect make a file, or leave one behind.
func TestInspectMakesNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, l := range []lock.Locker{open(t, dir), openOther(t, dir)} {
		shows(t, l, nil)
	}
	if _, err := os.Stat(filepath.Join(dir, filelock.FileName("k"))); err == nil {
		t.Error("Inspect made a file")
	}
}

// A holder that is killed is followed by one of those who wait, in whatever process, and that
// by the next.
func TestKilledHolderIsFollowed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	waiting := make(waiters, 5)
	lockers := []lock.Locker{open(t, dir, waiting.count), open(t, dir, waiting.count)}
	for len(lockers) < cap(waiting) {
		lockers = append(lockers, openOther(t, dir, waiting.count))
	}
	holder := openOther(t, dir)
	h, last := acquire(t, holder)
	var mu sync.Mutex
	var all sync.WaitGroup
	for _, l := range lockers {
		came := waitFor(t.Context(), t, l)
		all.Go(func() {
			h, ok := <-came
			if !ok {
				return
			}
			mu.Lock()
			last = newer(t, h, last)
			mu.Unlock()
			release(t, h)
		})
	}
	waiting.await(cap(waiting))
	holder.Kill()
	all.Wait()
	matches(t, "Err of a holder that was killed", h.Err(), lock.ErrLost)
	shows(t, lockers[len(lockers)-1], nil)
}

// A holder that is stopped keeps what it holds, however long, and has it when it goes on.
func TestStoppedHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l, third, holder := open(t, dir), openOther(t, dir), openOther(t, dir)
	h, last := acquire(t, holder)
	holder.Stop()
	var all sync.WaitGroup
	for _, l := range []lock.Locker{l, third} {
		all.Go(func() {
			_, err := l.Acquire(t.Context(), "k", lock.Wait(3*ttl))
			matches(t, "Acquire of what a stopped process holds", err, lock.ErrHeld)
		})
	}
	all.Wait()
	shows(t, third, h)
	holder.Continue()
	if err := h.Err(); err != nil || h.Valid() == 0 {
		t.Errorf("a holder that was stopped: %v, Valid() = %v", err, h.Valid())
	}
	busy(t, l)
	release(t, h)
	h, _ = acquire(t, third)
	newer(t, h, last)
	release(t, h)
}

// Who waits and is stopped keeps nobody out, nor does who is killed.
func TestStoppedWaiter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	waiting := make(waiters, 2)
	l, stopped, killed := open(t, dir), openOther(t, dir, waiting.count), openOther(t, dir, waiting.count)
	h, last := acquire(t, l)
	came := waitFor(t.Context(), t, stopped)
	ctx, cancel := context.WithCancel(t.Context())
	waitFor(ctx, t, killed)
	waiting.await(2)
	stopped.Stop()
	cancel()
	killed.Kill()
	for range 5 {
		release(t, h)
		h, _ = acquire(t, l)
		last = newer(t, h, last)
	}
	stopped.Continue()
	release(t, h)
	if h, ok := <-came; ok {
		newer(t, h, last)
		release(t, h)
	}
	shows(t, l, nil)
}

// Of waits that were given up nothing is left, in whatever process they were.
func TestCancelledWaits(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lockers := []lock.Locker{openOther(t, dir), openOther(t, dir), open(t, dir)}
	holder, next := openOther(t, dir), openOther(t, dir)
	h, last := acquire(t, holder)
	for range 5 {
		ctx, cancel := context.WithCancel(t.Context())
		failed := make(chan error)
		for i := range 12 {
			go func() {
				h, err := lockers[i%len(lockers)].Acquire(ctx, "k")
				if err == nil {
					err = errors.Join(errors.New("a wait that was cancelled got the lock"), h.Release(t.Context()))
				} else if errors.Is(err, context.Canceled) {
					err = nil
				}
				failed <- err
			}()
		}
		time.Sleep(rand.N(50 * time.Millisecond))
		cancel()
		for range 12 {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
		release(t, h)
		h, _ = acquire(t, next)
		last = newer(t, h, last)
		time.Sleep(20 * time.Millisecond) // for who would be let in beside it
		if err := h.Err(); err != nil {
			t.Errorf("the holder after waits that were cancelled: %v", err)
		}
		for _, l := range lockers {
			busy(t, l)
		}
		release(t, h)
		shows(t, holder, nil)
		h, _ = acquire(t, holder)
		last = newer(t, h, last)
	}
	release(t, h)
}

// Who waits for a file that is removed gets the lock on the one in its place.
func TestRemovedWhileWaiting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	h, last := acquire(t, openOther(t, dir))
	waiting := make(waiters, 1)
	came := waitFor(t.Context(), t, open(t, dir, waiting.count))
	waiting.await(1)
	if err := os.Remove(filepath.Join(dir, filelock.FileName("k"))); err != nil {
		t.Fatal(err)
	}
	next, ok := <-came
	if !ok {
		return
	}
	newer(t, next, last)
	select {
	case <-h.Lost():
	case <-time.After(20 * time.Second):
		t.Error("whose file was removed is not told")
	}
	matches(t, "Err of whose file was removed", h.Err(), lock.ErrLost)
	release(t, next)
}

// Every process that takes its turn is alone, though some are killed while it is theirs.
func TestProcessesTakeTurns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	const processes, rounds = 4, 12
	var mu sync.Mutex
	inside, last := 0, lock.Token(0)
	turn := func(l lock.Locker, end func(lock.Handle)) error {
		h, err := l.Acquire(t.Context(), "k", lock.Wait(60*time.Second))
		if err != nil {
			return err
		}
		mu.Lock()
		token, _ := h.Token()
		if inside++; inside != 1 || token <= last {
			err = fmt.Errorf("%d inside, token %d after %d", inside, token, last)
		}
		last = token
		mu.Unlock()
		time.Sleep(time.Millisecond)
		mu.Lock()
		inside--
		mu.Unlock()
		end(h)
		return err
	}
	failed := make(chan error, processes)
	for range processes {
		lockers := make([]*otherprocess.Locker, rounds/4)
		for i := range lockers {
			lockers[i] = openOther(t, dir)
		}
		go func() {
			var err error
			for round := range rounds {
				l := lockers[round/4]
				if round%4 < 3 {
					err = errors.Join(err, turn(l, func(h lock.Handle) { err = errors.Join(err, h.Release(t.Context())) }))
				} else {
					err = errors.Join(err, turn(l, func(lock.Handle) { l.Kill() }))
				}
			}
			failed <- err
		}()
	}
	for range processes {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	shows(t, open(t, dir), nil)
}
