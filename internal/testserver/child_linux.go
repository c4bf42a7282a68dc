package testserver

import (
	"errors"
	"os/exec"
	"syscall"
)

// dieWithUs has the kernel kill the child when the thread that starts it ends.
func dieWithUs(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// awaitStopped returns when every thread of a child that was sent SIGSTOP has
// stopped: kill(2) returns earlier. If the child is dead it returns at once.
func awaitStopped(pid int) {
	const byPID = 1 // P_PID of waitid(2), which package syscall lacks
	for {
		// WNOWAIT leaves the report there for a second Pause.
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), 0, syscall.WSTOPPED|syscall.WNOWAIT, 0, 0)
		if !errors.Is(errno, syscall.EINTR) {
			return
		}
	}
}
