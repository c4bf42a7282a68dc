//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// child is the program that runs, leader of a process group of its own.
type child struct {
	pid     int // also the number of the group
	changes chan syscall.WaitStatus
	killer  *time.Timer // after a loss
}

// lookUp finds the file of a program as execvp(3) does.
func lookUp(name string) (string, error) {
	path, err := exec.LookPath(name)
	switch {
	case err == nil, errors.Is(err, exec.ErrDot): // whoever has "." in PATH wants it
		return path, nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return "", failf(exitNotFound, "%q: not found; check its name and PATH", name)
	default:
		return "", failf(exitNotExecutable, "%q: cannot be executed; check its permissions (%v)", name, errors.Unwrap(err))
	}
}

// cannotStart says why the kernel did not start what lookUp had found.
func cannotStart(name string, err error) *failure {
	switch {
	case errors.Is(err, syscall.ENOENT):
		return failf(exitNotFound, "%q: the interpreter in its first line was not found, or the file has just gone", name)
	case errors.Is(err, syscall.ENOEXEC):
		return failf(exitNotExecutable, "%q: neither a program for this machine nor a script; does the script lack its #! line?", name)
	default:
		return failf(exitNotExecutable, "%q: cannot be executed (%v)", name, err)
	}
}

// startChild starts the program at path.
//
// It uses package syscall, not os/exec: the descriptors 0, 1 and 2 go to the
// program without being looked at (package os would change whether they block, for
// everyone who shares them), nothing waits for pipes that the program's background
// processes keep open, and stops show as well as the end.
func startChild(path string, argv, env []string) (*child, error) {
	c := &child{changes: make(chan syscall.WaitStatus)}
	started := make(chan error)
	go c.live(path, argv, env, started)
	return c, <-started
}

// live starts the program and reports what becomes of it. The kernel's promise to
// signal the program when its parent dies (see attributes) is about the parent
// thread: the goroutine keeps its thread for as long as the program lives.
func (c *child) live(path string, argv, env []string, started chan<- error) {
	runtime.LockOSThread()
	pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{
		Env:   env,
		Files: []uintptr{0, 1, 2},
		Sys:   attributes(),
	})
	c.pid = pid
	started <- err
	for err == nil {
		ws := c.wait()
		c.changes <- ws
		if !ws.Stopped() {
			return
		}
	}
}

// wait returns at the next stop of the program, or at its end.
func (c *child) wait() syscall.WaitStatus {
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(c.pid, &ws, syscall.WUNTRACED, nil)
		switch {
		case err == nil:
			return ws
		case !errors.Is(err, syscall.EINTR):
			panic(fmt.Sprintf("holdfast: wait for process %d: %v", c.pid, err)) // nobody else waits for it
		}
	}
}

// signal sends sig to the whole group. That nobody is left to receive it is for
// wait to report.
func (c *child) signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.pid, sig)
}

// killLater kills the group after d, whatever else goes on.
func (c *child) killLater(d time.Duration) {
	c.killer = time.AfterFunc(d, func() { c.signal(syscall.SIGKILL) })
}

// endGroup ends the processes of the group that have outlived the program: they
// were asked to end already, have time until killAt, and are gone, or killed and
// given killTime to be gone, when it returns. While one of them exists the number
// of the group cannot belong to strangers.
func (c *child) endGroup(killAt time.Time, killTime time.Duration) {
	defer c.killer.Stop()
	if !c.groupGone(killAt) {
		c.signal(syscall.SIGKILL)
		c.groupGone(time.Now().Add(killTime))
	}
}

// groupGone waits until no process of the group exists, or the time is over. It
// has to poll: they are not holdfast's children. Processes that have ended, but
// that nobody has waited for yet, still count.
func (c *child) groupGone(deadline time.Time) bool {
	const interval = 5 * time.Millisecond
	for {
		if err := syscall.Kill(-c.pid, 0); errors.Is(err, syscall.ESRCH) {
			return true
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		time.Sleep(min(interval, left))
	}
}
