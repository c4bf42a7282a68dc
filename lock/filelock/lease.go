//go:build linux || darwin

package filelock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

var (
	errEnded    = errors.New("the Locker gives up all its locks")
	errReplaced = errors.New("its file was removed, or replaced")
)

// lease is what the kernel keeps alive: all locks of a Locker, for as long as the process
// runs. It ends when the engine ends it.
type lease struct {
	opened    driver.Stamp
	announced chan struct{}
	ended     chan struct{}

	mu     sync.Mutex
	grants map[string]*grant // by request ID; nil when it has ended
}

// current returns the lease for the next lock, when it is announced.
func (b *backend) current() *lease {
	b.mu.Lock()
	l := b.lease
	if l != nil && !l.over() {
		b.mu.Unlock()
		<-l.announced
		return l
	}
	l = &lease{
		opened: driver.Now(), announced: make(chan struct{}), ended: make(chan struct{}),
		grants: make(map[string]*grant),
	}
	if b.closed {
		_ = l.End(context.Background())
	}
	b.lease = l
	b.mu.Unlock()
	b.host.Keep(l, l.opened)
	close(l.announced)
	return l
}

// Term implements driver.Lease. A lock of a process that was stopped, or of a machine
// that was suspended, for however long, is still its own.
func (l *lease) Term() time.Duration { return lock.MaxTTL }

// End implements driver.Lease.
func (l *lease) End(context.Context) error {
	l.mu.Lock()
	grants := l.grants
	if grants != nil {
		close(l.ended)
	}
	l.grants = nil
	l.mu.Unlock()
	for _, g := range grants {
		g.free()
	}
	return nil
}

func (l *lease) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grants == nil
}

// add makes g one of l's. false: l has ended.
func (l *lease) add(g *grant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.grants == nil {
		return false
	}
	l.grants[g.id] = g
	return true
}

// remove returns false if g was removed already.
func (l *lease) remove(g *grant) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.grants[g.id] != g {
		return false
	}
	delete(l.grants, g.id)
	return true
}

// check tells the host of locks whose files are not in their places.
func (l *lease) check(host driver.Host) error {
	l.mu.Lock()
	grants := slices.Collect(maps.Values(l.grants))
	l.mu.Unlock()
	var unknown error
	for _, g := range grants {
		there, err := inPlace(g.file, g.path)
		switch {
		case errors.Is(err, os.ErrClosed): // released meanwhile
		case err != nil:
			unknown = fmt.Errorf("%s: %w", g.path, err)
		case !there && l.remove(g):
			host.GrantLost(g.id, errReplaced)
			g.free()
		}
	}
	return unknown
}

// grant is one lock.
type grant struct {
	lease *lease
	file  *os.File
	path  string
	id    string
	token lock.Token
}

// Token implements driver.Grant.
func (g *grant) Token() (lock.Token, bool) { return g.token, true }

// Lease implements driver.Grant.
func (g *grant) Lease() driver.Lease { return g.lease }

// Proved implements driver.Grant.
func (g *grant) Proved() driver.Stamp { return g.lease.opened }

// Release implements driver.Grant.
func (g *grant) Release(context.Context) error {
	if !g.lease.remove(g) {
		return lock.ErrLost
	}
	there, err := inPlace(g.file, g.path)
	g.free()
	if err == nil && !there {
		return lock.ErrLost
	}
	return nil
}

// free gives the lock to whoever waits for it.
func (g *grant) free() {
	_ = writeFree(g.file) // for Inspect
	free(g.file)
}
