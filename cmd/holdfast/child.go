//go:build unix

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// child is the program that runs, leader of a process group of its own.
type child struct {
	pid     int // also the number of the group
	changes chan syscall.WaitStatus
	ended   atomic.Bool // pid may be another's
	strays  strays
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
		err = c.wait()
	}
}

// wait reports the next stop of the program, or its end. As the first process of a
// container holdfast gets all orphans there, and waits for them too: or they would stay
// zombies. The error is that there is nothing left to wait for.
func (c *child) wait() error {
	var ws syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &ws, syscall.WUNTRACED, nil)
	switch {
	case errors.Is(err, syscall.EINTR):
		return nil
	case err != nil && !c.ended.Load():
		panic(fmt.Sprintf("holdfast: wait for process %d: %v", c.pid, err)) // nobody else waits for it
	case err == nil && pid == c.pid && !c.ended.Load():
		c.ended.Store(!ws.Stopped())
		c.changes <- ws
	}
	return err
}

// signal sends sig to the whole group, and to the program if it has gone to another.
// That nobody is left to receive it is for wait to report.
func (c *child) signal(sig syscall.Signal) {
	_ = syscall.Kill(-c.pid, sig)
	if group, err := syscall.Getpgid(c.pid); err == nil && group != c.pid && !c.ended.Load() {
		_ = syscall.Kill(c.pid, sig)
	}
}

// foreign says whether the program runs as a user whose processes holdfast may not signal.
func (c *child) foreign() bool {
	return !c.ended.Load() && errors.Is(syscall.Kill(c.pid, 0), syscall.EPERM)
}

// signalTree sends sig to all that has come of the program, as far as it was seen.
func (c *child) signalTree(sig syscall.Signal) {
	c.signal(sig)
	c.strays.signal(sig)
}

// killLater kills the tree after d, whatever else goes on.
func (c *child) killLater(d time.Duration) {
	c.killer = time.AfterFunc(d, func() { c.signalTree(syscall.SIGKILL) })
}

// endTree ends the processes that have outlived the program: they were asked to end
// already, have time until killAt, and are gone, or killed and given killTime to be gone,
// when it returns. It has to poll: they are not holdfast's children.
func (c *child) endTree(killAt time.Time, killTime time.Duration) {
	defer c.killer.Stop()
	if !c.treeGone(killAt) {
		c.signalTree(syscall.SIGKILL) // again: others may have been seen since
		c.treeGone(time.Now().Add(killTime))
	}
}

// treeGone waits until no process of the tree exists, or the time is over.
func (c *child) treeGone(deadline time.Time) bool {
	const shortest, longest = 5 * time.Millisecond, 40 * time.Millisecond
	for pause := shortest; ; pause = min(2*pause, longest) {
		if strays := c.strays.look(c); !strays && c.groupGone() {
			return true
		}
		left := time.Until(deadline)
		if left <= 0 {
			return false
		}
		time.Sleep(min(pause, left))
	}
}

// groupGone says whether no process of the group exists. While one does, the number of
// the group cannot belong to strangers. Processes that have ended, but that nobody has
// waited for yet, still count.
func (c *child) groupGone() bool {
	return errors.Is(syscall.Kill(-c.pid, 0), syscall.ESRCH)
}
