//go:build !linux && !darwin

package filelock

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/holdfast-go/holdfast/lock/driver"
)

func checkFileSystem(string) error {
	return fmt.Errorf("locks in files on %s: %w; choose another backend", runtime.GOOS, errors.ErrUnsupported)
}

func newDriver(string, driver.Host) (driver.Driver, error) { return nil, checkFileSystem("") }
