//go:build linux || darwin

package filelock

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// waits are the calls of flock(2) that wait, of this process, at most one a file. Such a
// call cannot be ended, and costs a thread: it goes on when its caller has given up. Then
// the next caller takes it over, or the lock is freed as soon as it comes. There are
// no more than a few: who finds no place asks again and again instead.
var waits = struct {
	sync.Mutex
	m map[inode]*wait
}{m: make(map[inode]*wait)}

const mostWaits = 64

// inode is a file, whatever it is called.
type inode struct{ device, number uint64 }

type wait struct {
	file   *os.File
	caller chan result // nil when it has given up
}

type result struct {
	file *os.File
	err  error
}

// slice is how long a caller waits before it looks whether it is the right file that it
// waits for: that may have been removed.
const slice = time.Second

// waitFor returns f, or another opening of the same file, with its lock; or, when its
// time is over, ErrAgain; or ErrHeld, if there is no place for another wait; or the error
// of ctx, or that the lease has ended. f is its own to close.
func waitFor(ctx context.Context, ended <-chan struct{}, f *os.File) (*os.File, error) {
	w, came, err := join(f)
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(slice)
	defer timer.Stop()
	select {
	case r := <-came:
		return r.file, r.err
	case <-timer.C:
		return nil, w.giveUp(came, driver.ErrAgain)
	case <-ctx.Done():
		return nil, w.giveUp(came, ctx.Err())
	case <-ended:
		return nil, w.giveUp(came, errEnded)
	}
}

// join takes over the wait for f of a caller that has given up, or begins one.
func join(f *os.File) (*wait, chan result, error) {
	node, err := inodeOf(f)
	if err != nil {
		free(f)
		return nil, nil, err
	}
	waits.Lock()
	defer waits.Unlock()
	w := waits.m[node]
	switch {
	case w == nil && len(waits.m) < mostWaits:
		w = &wait{file: f, caller: make(chan result, 1)}
		waits.m[node] = w
		go func() { w.finish(node, waitLock(f)) }()
	case w != nil && w.caller == nil:
		free(f)
		w.caller = make(chan result, 1)
	default:
		free(f)
		return nil, nil, lock.ErrHeld
	}
	return w, w.caller, nil
}

func inodeOf(f *os.File) (inode, error) {
	info, err := f.Stat()
	if err != nil {
		return inode{}, err
	}
	s := info.Sys().(*syscall.Stat_t)
	return inode{uint64(s.Dev), s.Ino}, nil //nolint:gosec,unconvert // an int32 on macOS
}

// finish takes what the wait has brought.
func (w *wait) finish(node inode, err error) {
	waits.Lock()
	defer waits.Unlock()
	delete(waits.m, node)
	if w.caller == nil {
		if err == nil {
			_ = writeFree(w.file) // for who sees it locked, and asks by whom
		}
		free(w.file)
		return
	}
	if err != nil {
		free(w.file)
		w.file = nil
	}
	w.caller <- result{w.file, err}
}

// giveUp leaves the wait. What has come at the same moment is given back.
func (w *wait) giveUp(came chan result, why error) error {
	waits.Lock()
	defer waits.Unlock()
	w.caller = nil
	select {
	case r := <-came:
		if r.file != nil {
			free(r.file)
		}
	default:
	}
	return why
}
