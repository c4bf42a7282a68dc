package filelock_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

// openFile opens the file of the lock on "k", which is made if it is not there.
func openFile(t *testing.T, l lock.Locker, dir string) *os.File {
	t.Helper()
	h, _ := acquire(t, l)
	release(t, h)
	f, err := os.OpenFile(filepath.Join(dir, "k.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// killHolder has the file say that it is held by a process that was killed.
func killHolder(t *testing.T, f *os.File) {
	t.Helper()
	if err := filelock.WriteKilled(f); err != nil {
		t.Fatal(err)
	}
}

func flock(t *testing.T, f *os.File, how int) {
	t.Helper()
	if err := syscall.Flock(int(f.Fd()), how); err != nil {
		t.Fatal(err)
	}
}

// try takes a lock without waiting for it, in one way or the other, and releases it.
func try(ctx context.Context, l lock.Locker, wait0 bool) error {
	var h lock.Handle
	var err error
	if wait0 {
		h, err = l.Acquire(ctx, "k", lock.Wait(0))
	} else {
		h, err = l.TryAcquire(ctx, "k")
	}
	if err != nil {
		return fmt.Errorf("a lock that nobody holds, tried with Wait(0) %v: %w", wait0, err)
	}
	return h.Release(ctx)
}

// Of a holder that was killed the file tells, and many look whether it is alive: nobody who
// tries is excluded by them, and they see nobody.
func TestInspectExcludesNobody(t *testing.T) {
	dir := t.TempDir()
	l, other := open(t, dir), openOther(t, dir)
	f := openFile(t, l, dir)

	var looks atomic.Int64
	var quiet atomic.Bool // all only look
	ctx, stop := context.WithCancel(t.Context())
	var lookers sync.WaitGroup
	look := func(l lock.Locker) {
		for ctx.Err() == nil {
			before := quiet.Load()
			info, err := l.Inspect(background, "k")
			if err != nil || len(info.Holders) > 0 && before && quiet.Load() {
				t.Errorf("Inspect of a lock that nobody holds: %+v, %v", info, err)
			}
			looks.Add(1)
		}
	}
	for range 3 {
		own, others := open(t, dir), openOther(t, dir)
		for range 4 {
			lookers.Go(func() { look(own) })
			lookers.Go(func() { look(others) })
		}
	}
	await := func(n int64) {
		for end := looks.Load() + n; looks.Load() < end; {
			runtime.Gosched()
		}
	}
	killHolder(t, f)
	quiet.Store(true)
	await(1000)
	quiet.Store(false)
	for round := range 60 {
		killHolder(t, f)
		await(24) // all are at it
		if err := try(t.Context(), []lock.Locker{l, other}[round%2], round%4 < 2); err != nil {
			t.Error(err)
		}
	}
	stop()
	lookers.Wait()
}

// Nor if it takes them long: their processes may be stopped.
func TestSlowInspectExcludesNobody(t *testing.T) {
	t.Parallel()
	for _, say := range []string{"free", "killed"} {
		for _, wait0 := range []bool{false, true} {
			t.Run(say, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				l := open(t, dir)
				f := openFile(t, l, dir)
				if say == "killed" {
					killHolder(t, f)
				}
				flock(t, f, syscall.LOCK_SH)
				unlocked := make(chan struct{})
				time.AfterFunc(50*time.Millisecond, func() { flock(t, f, syscall.LOCK_UN); close(unlocked) })
				if err := try(t.Context(), l, wait0); err != nil {
					t.Error(err)
				}
				<-unlocked
			})
		}
	}
}

// The wait of who has given up may get the lock, and frees it when its process is let run.
func TestSlowEndOfWaitExcludesNobody(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := open(t, dir)
	f := openFile(t, l, dir)
	var err error
	for range 20 { // on a busy machine it may be too slow now and then
		flock(t, f, syscall.LOCK_EX)
		unlocked := make(chan struct{})
		time.AfterFunc(30*time.Millisecond, func() { flock(t, f, syscall.LOCK_UN); close(unlocked) })
		err = try(t.Context(), l, false)
		if <-unlocked; err == nil {
			return
		}
	}
	t.Error(err)
}

// A stranger's lock excludes, of whatever kind it is, and is no holder that Inspect knows.
func TestStrangersLock(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int{"shared": syscall.LOCK_SH, "exclusive": syscall.LOCK_EX} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			l := open(t, dir)
			f := openFile(t, l, dir)
			flock(t, f, how)
			_, err := l.TryAcquire(t.Context(), "k")
			matches(t, "TryAcquire", err, lock.ErrHeld)
			_, err = l.Acquire(t.Context(), "k", lock.Wait(4*ttl))
			matches(t, "Acquire", err, lock.ErrHeld)
			if info, err := l.Inspect(t.Context(), "k"); err != nil || len(info.Holders) > 0 {
				t.Errorf("Inspect: %+v, %v", info, err)
			}
			flock(t, f, syscall.LOCK_UN)
			h, _ := acquire(t, l)
			release(t, h)
		})
	}
}
