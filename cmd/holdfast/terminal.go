//go:build unix

package main

import (
	"errors"
	"os/signal"
	"syscall"
	"unsafe"

	"github.com/holdfast-go/holdfast/lock"
)

// A terminal has one foreground process group: it alone may read, and gets the
// keys that make signals. The program has a group of its own, so holdfast does
// for it what a shell does for its jobs: it hands the terminal over, takes it
// back, and, when the program is suspended, is suspended with it.

// terminal is the controlling terminal of holdfast; zero if there is none.
type terminal struct {
	fd int
}

func openTerminal() terminal {
	fd, err := syscall.Open("/dev/tty", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return terminal{}
	}
	return terminal{fd}
}

// foreground returns the group that has the terminal, or 0.
func foreground(fd int) int {
	var pgrp int32
	if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&pgrp))); errno != 0 {
		return 0
	}
	return int(pgrp)
}

// give makes pgrp the foreground group.
func (t terminal) give(pgrp int) {
	// Whoever does this from the background is stopped by TTOU, unless it ignores
	// it. The program is running by now and does not inherit that. holdfast keeps
	// ignoring it: its messages must not stop it either ("stty tostop").
	signal.Ignore(syscall.SIGTTOU)
	n := int32(pgrp)
	_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, uintptr(t.fd), syscall.TIOCSPGRP, uintptr(unsafe.Pointer(&n)))
}

// ours says whether holdfast's own group has the terminal.
func (t terminal) ours() bool {
	return t.fd != 0 && foreground(t.fd) == syscall.Getpgrp()
}

// adopt hands the terminal to the program if it is the program's input. In a
// pipeline it is not: others of holdfast's group may be reading it. A program
// that wants the terminal all the same, or sooner than it is handed over here, is
// stopped by the kernel; then stopped gives it the terminal and resumes it.
// (SysProcAttr.Foreground would leave no gap, but needs TTOU to be ignored before
// the fork, and the program would inherit that.)
func (t terminal) adopt(c *child) {
	const stdin = 0
	if t.ours() && foreground(stdin) != 0 {
		t.give(c.pid)
	}
}

// takeBack makes holdfast's group the foreground again, for whoever comes after
// it there, if the program's group or nobody has the terminal.
func (t terminal) takeBack(c *child) {
	if t.fd == 0 {
		return
	}
	if fg := foreground(t.fd); fg == c.pid || fg != 0 && errors.Is(syscall.Kill(-fg, 0), syscall.ESRCH) {
		t.give(syscall.Getpgrp())
	}
}

// stopped reacts to a stop of the program. A stop that is none of the terminal's
// business (SIGSTOP) is left to whoever caused it; the lock stays held meanwhile.
func (r *runner) stopped(h lock.Handle, c *child, sig syscall.Signal) {
	wantsTerminal := sig == syscall.SIGTTIN || sig == syscall.SIGTTOU
	switch {
	case r.tty.fd == 0 || !wantsTerminal && sig != syscall.SIGTSTP:
		return
	case wantsTerminal && (r.tty.ours() || foreground(r.tty.fd) == c.pid):
		r.tty.give(c.pid)
	case !leadsSession():
		r.suspend(h, c)
	}
	c.signal(syscall.SIGCONT)
}

// leadsSession says whether holdfast's group is that of the session's leader: no
// shell is there that could resume it, and the kernel does not suspend such groups
// either ("ssh -t host holdfast …", the first process of a container).
func leadsSession() bool {
	sid, _, errno := syscall.RawSyscall(syscall.SYS_GETSID, 0, 0, 0)
	return errno != 0 || int(sid) == syscall.Getpgrp()
}

// suspend stops holdfast too, with the rest of its job, so that the shell notices,
// and returns when the shell has resumed it. The lock is not renewed meanwhile. If
// it is lost by then somebody else may be at work: the program must not get a
// moment more.
func (r *runner) suspend(h lock.Handle, c *child) {
	hadTerminal := foreground(r.tty.fd) == c.pid
	r.tty.takeBack(c)
	// All of the job at once, and holdfast in the same call. The shell may wait for
	// another of the job (a script that runs holdfast) and resume the job as soon as
	// that one has stopped: a stop that holdfast made for itself later would come after
	// the SIGCONT, and nobody would send a second one. Nor does TSTP stop a Go program
	// that has ever caught it.
	_ = syscall.Kill(0, syscall.SIGSTOP)
	for sig := range r.signals {
		if sig == syscall.SIGCONT {
			break
		}
		c.signal(sig.(syscall.Signal))
	}
	if h.Err() != nil {
		c.strays.look(c)
		c.signalTree(syscall.SIGKILL)
	}
	if hadTerminal && r.tty.ours() {
		r.tty.give(c.pid)
	}
}
