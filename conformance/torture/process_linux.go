package torture

import (
	"os/exec"
	"syscall"
)

// dieWithUs has the kernel kill the child, stopped or not, when the thread that starts
// it ends.
func dieWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
