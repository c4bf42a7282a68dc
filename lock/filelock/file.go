//go:build linux || darwin

package filelock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// notFollowed: a link is not followed, a pipe not waited for; and a child does not inherit
// the file, or it would inherit the lock.
const notFollowed = syscall.O_NOFOLLOW | syscall.O_NONBLOCK | syscall.O_CLOEXEC

// open opens the file at path for locking, and makes it if there is none.
func open(path string) (*os.File, error) {
	f, err := openThere(path, os.O_RDWR)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	// Apart from the above, as in a directory that all may write to, the kernel refuses
	// to make a file that is another's already.
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|notFollowed, 0o666)
}

// openThere opens what is at path, if that is a file.
func openThere(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, how|notFollowed, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errForeign
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// inPlace says whether f is still the file at path: a lock on one that was removed, or
// replaced, excludes nobody who comes later.
func inPlace(f *os.File, path string) (bool, error) {
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	}
	return os.SameFile(mine, there), nil
}

// prepare makes a lock's file of f, if it is new, and checks that it is that of key. The
// header comes last: it says that the name is on the disk. It is there itself before a
// token or a holder is: if the power fails, a file with those and without a header would
// pass for a stranger's.
func prepare(f *os.File, key string) error {
	fresh, err := isNew(f)
	if err != nil {
		return err
	}
	if !fresh {
		return checkKey(f, key)
	}
	if err := writeLine(f, keyAt, strconv.Quote(key)); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(f.Name())); err != nil {
		return err
	}
	if err := writeLine(f, headerAt, header); err != nil {
		return err
	}
	return f.Sync()
}

// looksNew is isNew for one who has no lock on f, and may see it while another makes a lock's
// file of it: what then looks like a stranger's is looked at again with a lock, or left to who
// has that. It is not locked before, or those who look would keep away who wants to hold it.
func looksNew(f *os.File) (bool, error) {
	fresh, err := isNew(f)
	if !errors.Is(err, errForeign) {
		return fresh, err
	}
	taken, err := tryShared(f)
	if err != nil || !taken {
		return true, err
	}
	defer unlock(f)
	return isNew(f)
}

// checkKey checks that f is the file of key, and not of another: one that was moved, or
// that has the same hash.
func checkKey(f *os.File, key string) error {
	text, ok, err := readLine(f, keyAt)
	if err != nil {
		return err
	}
	switch {
	case !ok:
		return fmt.Errorf("%w: its key cannot be read", errForeign)
	case text != strconv.Quote(key):
		return fmt.Errorf("%w: it is that of another key, %s", errForeign, text)
	}
	return nil
}

// syncDir has the names in dir be on the disk. Who may not read there may lock there all
// the same: then a failure of the power may cost the file, and the clock alone has
// tokens rise.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
