//go:build unix

package torture

import (
	"os"
	"syscall"
	"time"
)

// die ends the process as a crash does.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// pause stops the process, as a machine that hangs.
func (w *Worker) pause() { w.proc.signal(syscall.SIGSTOP) }

// resume lets it go on.
func (w *Worker) resume() { w.proc.signal(syscall.SIGCONT) }

// quit ends a process that does not end, with what its goroutines are doing.
func (p *process) quit() {
	p.signal(syscall.SIGQUIT)
	select {
	case <-p.exited:
	case <-time.After(5 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.exited
	}
}
