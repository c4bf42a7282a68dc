//go:build linux || darwin

package filelock

import (
	"errors"
	"os"
	"syscall"
)

// tryLock takes the lock on f, unless another has it.
func tryLock(f *os.File) (taken bool, err error) { return try(f, syscall.LOCK_EX) }

// tryShared takes a lock that excludes nobody but who locks.
func tryShared(f *os.File) (taken bool, err error) { return try(f, syscall.LOCK_SH) }

func try(f *os.File, how int) (taken bool, err error) {
	err = flock(f, how|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// waitLock takes the lock on f. Nothing ends the wait but the lock.
func waitLock(f *os.File) error { return flock(f, syscall.LOCK_EX) }

// free gives up f and its lock, if it has it. Closing alone does not: a child that is being
// started has f, too, until it has begun.
func free(f *os.File) {
	unlock(f)
	_ = f.Close()
}

// unlock gives up the lock on f, if it has it.
func unlock(f *os.File) { _ = flock(f, syscall.LOCK_UN) }

func flock(f *os.File, how int) error {
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}
