//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/holdfast-go/holdfast/lock"
)

// The exit codes of holdfast's own. Those below 100 are sysexits(3), which
// mailers and cron wrappers know; the others are the shell's. A program that was
// started may use the same numbers for its own purposes: a message on stderr that
// begins with "holdfast:" tells the two apart.
const (
	exitUsage         = 64  // EX_USAGE: the command line is wrong; nothing was started
	exitUnavailable   = 69  // EX_UNAVAILABLE: the backend could not be asked; nothing was started
	exitNotWritten    = 74  // EX_IOERR: what was asked for could not be written to standard output
	exitBusy          = 75  // EX_TEMPFAIL: somebody else holds the lock; nothing was started
	exitLost          = 76  // EX_PROTOCOL: the lock was lost, or held too long, while the program ran; the program was stopped
	exitConfig        = 78  // EX_CONFIG: the URL is wrong, or the backend refuses it; nothing was started
	exitNotExecutable = 126 // the program exists and cannot be executed
	exitNotFound      = 127 // there is no such program
	exitSignal        = 128 // + n: the program died of signal n, or signal n ended the wait for the lock
)

// failure is an error that says with which code the command ends. Without text
// it ends silently: the program that ran has said what there was to say.
type failure struct {
	code int
	text string
}

func (f *failure) Error() string { return f.text }

func failf(code int, format string, args ...any) *failure {
	return &failure{code, fmt.Sprintf(format, args...)}
}

// exitCode tells the user of err and returns the code to end with.
func exitCode(err error, r *report) int {
	if err == nil {
		return 0
	}
	f := classify(err)
	if f.text != "" {
		r.fail(f)
	}
	return f.code
}

// classify finds the code for an error that has none of its own.
func classify(err error) *failure {
	if f, ok := errors.AsType[*failure](err); ok {
		return f
	}
	if written, ok := errors.AsType[*fs.PathError](err); ok && written.Op == "write" {
		return failf(exitNotWritten, "standard output could not be written: make room where it goes (%v)", written.Err)
	}
	// cobra's own: an unknown command or flag, a missing value
	return failf(exitUsage, "%v; see holdfast --help", err)
}

// refusal says why the lock on key was not acquired.
func refusal(key string, err error) *failure {
	switch {
	case errors.Is(err, lock.ErrHeld):
		return failf(exitBusy, "the lock %q is held by another; nothing was started: try again later, or wait longer with --wait", key)
	case errors.Is(err, lock.ErrUnavailable):
		return failf(exitUnavailable, "the lock %q could not be acquired; nothing was started: %s (%s)", key, remedy(err), plain(err))
	default: // what may pass by itself is retried, and ends as unavailable: this will not pass
		return failf(exitConfig, "the lock %q could not be acquired; nothing was started: correct the configuration (%s)", key, plain(err))
	}
}

// unopened says why there is no Locker. An error without a class that a server
// caused is most likely about its configuration, unless time ran out.
func unopened(err error) *failure {
	if errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return failf(exitUnavailable, "the backend could not be reached; nothing was started: %s (%s)", remedy(err), plain(err))
	}
	return failf(exitConfig, "the backend could not be opened; nothing was started: correct --url or HOLDFAST_URL (%s)", plain(err))
}

// remedy says what to do about a backend that could not be asked.
func remedy(err error) string {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return "make room on the disk that has the locks"
	}
	return "check that the server runs and can be reached"
}

// ended turns how a process ended into the exit code that a shell would give it.
func ended(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return exitSignal + int(ws.Signal())
	}
	return ws.ExitStatus()
}
