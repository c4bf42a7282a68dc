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

// open opens the file at path for locking, and makes it if there is none. It follows
// no link. A child does not inherit it, or it would inherit the lock.
func open(path string) (*os.File, error) {
	const flags = os.O_RDWR | syscall.O_NOFOLLOW | syscall.O_CLOEXEC
	for {
		f, err := os.OpenFile(path, flags, 0)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, err
		}
		// Apart from the above, as in a directory that all may write to, the kernel
		// refuses to make a file that is another's already.
		f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, 0o666)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
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

// prepare makes a lock's file of f, if it is new, and checks that it is that of key.
func prepare(f *os.File, key string) error {
	fresh, err := isNew(f)
	if err != nil {
		return err
	}
	if text, ok, err := readLine(f, keyAt); err != nil {
		return err
	} else if ok {
		if text != strconv.Quote(key) {
			return fmt.Errorf("%w: it is that of another key, %s", errForeign, text)
		}
		if !fresh {
			return nil
		}
	}
	if err := writeLine(f, keyAt, strconv.Quote(key)); err != nil {
		return err
	}
	if err := writeLine(f, headerAt, header); err != nil {
		return err
	}
	// The name must be on the disk as the token will be.
	dir, err := os.Open(filepath.Dir(f.Name()))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}
