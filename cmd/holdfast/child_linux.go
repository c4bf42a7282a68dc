package main

import "syscall"

// attributes puts the program into a process group of its own, and has the kernel
// kill it if holdfast dies without having ended it. KILL, not TERM: nobody would
// be left to insist, and the lock ends at most one TTL later.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
