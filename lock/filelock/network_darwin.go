package filelock

import (
	"errors"
	"syscall"
)

// checkFileSystem refuses a directory whose locks may not hold.
func checkFileSystem(dir string) error {
	const local = 0x1000 // MNT_LOCAL
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return err
	}
	if s.Flags&local == 0 {
		return errors.New("it is not on a local file system, and flock may not exclude other machines; choose one that is, or another backend")
	}
	return nil
}
