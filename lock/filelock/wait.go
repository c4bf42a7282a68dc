//go:build linux || darwin

package filelock

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// waits are the calls of flock(2) that wait, one a file. Such a call cannot be ended: it
// goes on, in a goroutine of its own, when its caller has given up. Then the next caller
// takes it over, or the lock is freed as soon as it comes.
type waits struct {
	mu sync.Mutex
	m  map[string]*wait // by path
}

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

// wait returns f, or another opening of the same file, with its lock; or, when its time
// is over, or ctx or the lease has ended, an error. f is its own to close.
func (ws *waits) wait(ctx context.Context, ended <-chan struct{}, path string, f *os.File) (*os.File, error) {
	came := make(chan result, 1)
	w := ws.join(path, f, came)
	timer := time.NewTimer(slice)
	defer timer.Stop()
	select {
	case r := <-came:
		return r.file, r.err
	case <-timer.C:
		return nil, ws.giveUp(w, came, driver.ErrAgain)
	case <-ctx.Done():
		return nil, ws.giveUp(w, came, ctx.Err())
	case <-ended:
		return nil, ws.giveUp(w, came, errEnded)
	}
}

// join takes over the wait for f of a caller that has given up, or begins one.
func (ws *waits) join(path string, f *os.File, came chan result) *wait {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.m[path]; w != nil && w.caller == nil && sameFile(w.file, f) {
		_ = f.Close()
		w.caller = came
		return w
	}
	w := &wait{file: f, caller: came}
	ws.m[path] = w
	go func() { ws.finish(path, w, waitLock(f)) }()
	return w
}

func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

// finish takes what the wait has brought.
func (ws *waits) finish(path string, w *wait, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	f := w.file
	if ws.m[path] == w {
		delete(ws.m, path)
	}
	if err != nil || w.caller == nil {
		_ = f.Close()
		f = nil
	}
	if w.caller != nil {
		w.caller <- result{f, err}
	}
}

// giveUp leaves the wait. What has come at the same moment is given back.
func (ws *waits) giveUp(w *wait, came chan result, why error) error {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	w.caller = nil
	select {
	case r := <-came:
		if r.file != nil {
			_ = r.file.Close()
		}
	default:
	}
	return why
}
