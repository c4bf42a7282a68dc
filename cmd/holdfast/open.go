//go:build unix

package main

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

// opener opens the Locker that a URL names.
type opener func(ctx context.Context, rawURL string, configure ...func(*lock.Config)) (lock.Locker, error)

// urlVariable names the lock service where --url does not.
const urlVariable = "HOLDFAST_URL"

// openTimeout bounds how long a command that does not wait takes to reach the
// backend; TryAcquire has the same limit of its own.
const openTimeout = 10 * time.Second

// chooseURL returns where the lock is: where nothing is said, in files of the user's.
func chooseURL(flag string) (string, error) {
	env, set := os.LookupEnv(urlVariable)
	switch {
	case flag != "":
		return shared(flag)
	case env != "":
		return shared(env)
	case set: // whoever has set it wanted a server that others use, too
		return "", failf(exitUsage, "%s is set, and empty: name a backend in it, as in redis://localhost:6379, or unset it", urlVariable)
	}
	dir, err := filelock.UserDir()
	if err != nil {
		return "", failf(exitConfig, "no backend is named, and there can be none in files of the user's: give --url or set %s (%s)", urlVariable, plain(err))
	}
	return (&url.URL{Scheme: "file", Path: dir}).String(), nil
}

// shared refuses a lock that would keep nobody out: in the memory of this process.
func shared(rawURL string) (string, error) {
	if scheme, _, _ := strings.Cut(rawURL, ":"); strings.EqualFold(scheme, "mem") {
		return "", failf(exitConfig, "a lock in memory is of one process, this one, and keeps nobody out: name another backend with --url or %s", urlVariable)
	}
	return rawURL, nil
}

// service is where the locks of a command are.
type service struct {
	open   opener
	url    string
	report *report
}

func (s *service) openOnce(ctx context.Context) (lock.Locker, error) {
	return s.open(ctx, s.url, func(c *lock.Config) { c.Observe = s.report.observe })
}

// openWithin opens the backend, in bounded time if the wait is bounded: 0 is one try,
// and lock.NoLimit no bound. A backend that cannot be reached may come back within the
// wait. The timer is stopped as soon as the backend is open, so that it cannot end what
// the backend may have hung on ctx.
func (s *service) openWithin(ctx context.Context, wait time.Duration) (lock.Locker, error) {
	limit := wait
	switch limit {
	case lock.NoLimit:
		return s.openAgain(ctx, wait)
	case 0:
		limit = openTimeout
	}
	ctx, cancel := context.WithCancelCause(ctx)
	timer := time.AfterFunc(limit, func() { cancel(context.DeadlineExceeded) })
	locker, err := s.openAgain(ctx, wait)
	timer.Stop()
	if err != nil && context.Cause(ctx) != nil {
		err = errors.Join(err, context.Cause(ctx)) // for the caller to see that time ran out
	}
	return locker, err
}

// openAgain opens the backend; one that cannot be reached is tried again until ctx ends,
// unless one try is all that was asked for.
func (s *service) openAgain(ctx context.Context, wait time.Duration) (lock.Locker, error) {
	const shortest, longest = 100 * time.Millisecond, 5 * time.Second
	for pause := shortest; ; pause = min(2*pause, longest) {
		locker, err := s.openOnce(ctx)
		if err == nil || wait == 0 || ctx.Err() != nil || !errors.Is(err, lock.ErrUnavailable) {
			return locker, err
		}
		if pause == shortest && wait == lock.NoLimit { // a bounded wait says so at its end
			s.report.say(slog.LevelInfo, "%s", unreachable(err))
		}
		if !sleep(ctx, pause) {
			return nil, err
		}
	}
}

// sleep says whether all of d has passed, and ctx is not done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
