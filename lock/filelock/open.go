package filelock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func init() { lock.Register("file", openURL) }

// Config is what [New] takes.
type Config struct {
	lock.Config

	// Dir is the directory of the locks. It must exist. Required.
	Dir string
}

// New returns a Locker on a directory. Its error matches [lock.ErrInvalid] if locks in
// that directory would not hold.
func New(cfg Config) (lock.Locker, error) {
	dir, err := checkDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) { return newDriver(dir, h) }, cfg.Config)
}

func openURL(_ context.Context, u *url.URL, cfg lock.Config) (lock.Locker, error) {
	if u.Host != "" && u.Host != "localhost" || u.Opaque != "" || u.User != nil || u.Fragment != "" || u.Path == "" {
		return nil, fmt.Errorf("%w: write file:///directory, with three slashes; percent-encode special characters", lock.ErrInvalid)
	}
	if err := driver.NewQuery(u).Err(); err != nil {
		return nil, err
	}
	dir, err := checkDir(u.Path)
	if err != nil {
		return nil, err
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) { return newDriver(dir, h) }, cfg)
}

// checkDir refuses what is not a directory in which locks hold, and returns its name
// from the root: the program may go to another.
func checkDir(dir string) (string, error) {
	if dir == "" {
		return "", fmt.Errorf("%w: the directory of the locks is not given", lock.ErrInvalid)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("%w: %w", lock.ErrInvalid, err)
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("%w: the directory %s is not there; make it, with the permissions of who may lock", lock.ErrInvalid, abs)
	case err != nil:
		return "", fmt.Errorf("%w: the directory of the locks: %w", lock.ErrInvalid, err)
	case !info.IsDir():
		return "", fmt.Errorf("%w: %s is not a directory", lock.ErrInvalid, abs)
	}
	if err := checkFileSystem(abs); err != nil {
		return "", fmt.Errorf("%w: the directory %s: %w", lock.ErrInvalid, abs, err)
	}
	return abs, nil
}

// UserDir returns a directory for the locks of the user whose process this is, and makes
// it if it is not there: .local/state/holdfast in the home directory. That is the one
// that the system has for the user, whatever the environment says: a shell, cron and a
// service must mean the same locks. Only of a user whom the system does not know,
// as in some containers, it is the environment's.
func UserDir() (string, error) {
	home := os.Getenv("HOME")
	if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil {
		home = u.HomeDir
	}
	if !filepath.IsAbs(home) {
		return "", errors.New("holdfast: the user has no home directory for locks; name a directory, as in file:///var/lib/app/locks")
	}
	dir := filepath.Join(home, ".local", "state", "holdfast")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("holdfast: a directory for locks: %w; name another, as in file:///var/lib/app/locks", err)
	}
	return dir, nil
}
