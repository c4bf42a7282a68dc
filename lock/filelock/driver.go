//go:build linux || darwin

package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// backend is the driver of one Locker.
type backend struct {
	dir  string
	host driver.Host

	mu     sync.Mutex
	lease  *lease // nil until needed, and after its end
	closed bool
}

func newDriver(dir string, h driver.Host) (driver.Driver, error) {
	return &backend{dir: dir, host: h}, nil
}

// Acquire implements driver.Driver. Whatever it does not return is freed before it
// returns, or by the wait that it leaves: a request leaves nothing behind.
func (b *backend) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	if r.Mode != lock.ModeExclusive {
		return nil, driver.Permanent(fmt.Errorf("shared locks in files: %w", errors.ErrUnsupported))
	}
	l := b.current()
	path := filepath.Join(b.dir, fileName(r.Key))
	f, err := b.take(ctx, l, path, r)
	if err != nil {
		return nil, fault(path, err)
	}
	g, err := b.grant(l, f, path, r)
	if err != nil {
		free(f)
		return nil, fault(path, err)
	}
	return g, nil
}

// take returns the file of r with its lock, and makes sure that it is in its place.
func (b *backend) take(ctx context.Context, l *lease, path string, r *driver.Request) (*os.File, error) {
	for {
		f, err := b.lockFile(ctx, l, path, r)
		if err != nil {
			return nil, err
		}
		there, err := inPlace(f, path)
		if err == nil && there {
			return f, nil
		}
		free(f)
		if err != nil {
			return nil, err
		}
		select {
		case <-time.After(instant):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// lockFile returns a file that was at path with its lock.
func (b *backend) lockFile(ctx context.Context, l *lease, path string, r *driver.Request) (*os.File, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	most := ifUnheld
	if r.Wait {
		most = ifWaiting
	}
	taken, err := tryForAMoment(ctx, f, most)
	switch {
	case err != nil:
		free(f)
		return nil, err
	case taken:
		return f, nil
	}
	r.Busy()
	if !r.Wait {
		free(f)
		return nil, lock.ErrHeld
	}
	return waitFor(ctx, l.ended, f)
}

// Whoever has a lock may have it for an instant only: how often to try again.
const (
	instant   = time.Millisecond // between two tries
	ifHeld    = 3
	ifUnsaid  = 100
	ifUnheld  = 1000
	ifWaiting = 10 // at most: who may wait for the kernel need not be sure
)

// tryForAMoment takes the lock on f, unless somebody seems to hold it after so many tries, or
// less.
func tryForAMoment(ctx context.Context, f *os.File, most int) (taken bool, err error) {
	for tired := 0.0; ; { // 1: enough
		if taken, err := tryLock(f); taken || err != nil {
			return taken, err
		}
		enough, err := insistence(f)
		if err != nil {
			return false, err
		}
		if tired += 1 / float64(min(enough, most)); tired >= 1 {
			return false, nil
		}
		select {
		case <-time.After(instant):
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
}

// insistence returns how often to try for a lock that another has.
func insistence(f *os.File) (int, error) {
	unheld, err := tryShared(f)
	if err != nil {
		return 0, err
	}
	_, said, err := readHolder(f)
	switch {
	case unheld:
		// Others share it, or have just freed it. Who shares it looks whether the holder is
		// alive of whom the file tells (see Inspect): it is not. While it is shared nobody can
		// become the holder, and so it can be written that there is none, and nobody has to
		// look any more. Who shares it for longer is a stranger.
		if said {
			err = writeFree(f)
		}
		unlock(f)
		return ifUnheld, err
	case said:
		// It is held. Or the holder was killed, and it is another's who will write so: one who
		// has given up waiting, or a holder to be.
		return ifHeld, err
	default:
		// A grant is in the making, for which the disk may take its time. Or somebody has given
		// up waiting, and frees it as soon as its process is let run.
		return ifUnsaid, err
	}
}

// grant mints the token of a lock that was taken, and makes it one of l's.
func (b *backend) grant(l *lease, f *os.File, path string, r *driver.Request) (*grant, error) {
	if err := prepare(f, r.Key); err != nil {
		return nil, err
	}
	if err := writeFree(f); err != nil { // what a holder that was killed has left there
		return nil, err
	}
	last, slot, err := lastToken(f)
	if err != nil {
		return nil, err
	}
	// With the clock as floor, tokens go on rising when the file was removed.
	now := time.Now()
	token := max(last+1, lock.Token(now.UnixMicro())) //nolint:gosec // after 1970
	if err := writeToken(f, slot, token); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if err := writeHolder(f, holder{token, now, r.Owner}); err != nil {
		return nil, err
	}
	g := &grant{lease: l, file: f, path: path, id: r.ID, token: token}
	if !l.add(g) {
		_ = writeFree(f)
		return nil, errEnded
	}
	return g, nil
}

// fault marks an error of the system. Whatever it is, it came before the grant, and the
// lock was freed. Many pass: a full disk, too many open files.
func fault(path string, err error) error {
	notFiles := []error{errForeign, syscall.ELOOP, syscall.EISDIR, syscall.ENXIO}
	lasting := []error{fs.ErrPermission, fs.ErrNotExist, syscall.ENOTDIR, syscall.EROFS, syscall.ENAMETOOLONG, errors.ErrUnsupported}
	is := func(e error) bool { return errors.Is(err, e) }
	switch {
	case errors.Is(err, lock.ErrHeld), errors.Is(err, driver.ErrAgain):
		return err
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case slices.ContainsFunc(notFiles, is):
		return driver.Permanent(fmt.Errorf("%s: %w; see what it is, and move it away, or choose another directory", path, err))
	case slices.ContainsFunc(lasting, is):
		return driver.Permanent(fmt.Errorf("%w; let the user make files there, and read and write this one, or choose another directory", err))
	}
	return driver.Refused(err)
}

// Abandon implements driver.Driver: see Acquire.
func (b *backend) Abandon(context.Context, *driver.Request) error { return nil }

// Renew implements driver.Driver. There is nothing to extend: it looks whether the files
// of all locks are still in their places.
func (b *backend) Renew(_ context.Context, leases []driver.Lease) []error {
	errs := make([]error, len(leases))
	for i, l := range leases {
		errs[i] = l.(*lease).check(b.host)
	}
	return errs
}

// Inspect implements driver.Driver. A process that was killed has not written that its
// lock is free: whether it is, is tried.
func (b *backend) Inspect(_ context.Context, key string) (lock.Info, error) {
	path := filepath.Join(b.dir, fileName(key))
	f, err := openThere(path, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return lock.Info{}, nil
	}
	if err != nil {
		return lock.Info{}, fault(path, err)
	}
	defer free(f)
	info, err := look(f, key)
	if err != nil {
		return lock.Info{}, fault(path, err)
	}
	return info, nil
}

// look returns what f, the file of key, tells of its holder.
func look(f *os.File, key string) (lock.Info, error) {
	fresh, err := looksNew(f)
	if err != nil || fresh {
		return lock.Info{}, err
	}
	if err := checkKey(f, key); err != nil {
		return lock.Info{}, err
	}
	h, held, err := readHolder(f)
	if err != nil || !held {
		return lock.Info{}, err
	}
	if taken, err := tryShared(f); taken || err != nil {
		return lock.Info{}, err
	}
	return lock.Info{Holders: []lock.Holder{{Owner: h.owner, Token: h.token, Since: h.since}}}, nil
}

// Features implements driver.Driver.
func (b *backend) Features() lock.Features { return lock.Fencing | lock.Leased }

// Close implements driver.Driver.
func (b *backend) Close(ctx context.Context) error {
	b.mu.Lock()
	l := b.lease
	b.lease, b.closed = nil, true
	b.mu.Unlock()
	if l == nil {
		return nil
	}
	return l.End(ctx)
}
