// Package process runs programs beside a test: they can be paused and killed, and
// nothing of them is left when the test binary ends, even if it is killed.
//
// It works on Unix only.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is one run of a program.
type Process struct {
	cmd    *exec.Cmd
	forks  bool          // see StartForking
	exited chan struct{} // closed when the process has ended and been waited for
	how    error         // what Wait said; read it after exited
}

// Start runs cmd such that it ends when this process does.
func Start(cmd *exec.Cmd) (*Process, error) {
	return start(&Process{cmd: cmd, exited: make(chan struct{})})
}

// StartForking is Start for a program whose children serve, each in a session of its own:
// they are paused, resumed and killed with it.
func StartForking(cmd *exec.Cmd) (*Process, error) {
	return start(&Process{cmd: cmd, forks: true, exited: make(chan struct{})})
}

func start(p *Process) (*Process, error) {
	started := make(chan error)
	go func() {
		// What dieWithUs asks for happens when the thread ends that started the
		// child, and Go ends threads as it likes: this one is kept as long as the
		// child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		dieWithUs(p.cmd)
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.how = p.cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// Exited returns a channel that is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Ended returns how the process ended, or nil if it runs.
func (p *Process) Ended() error {
	select {
	case <-p.exited:
		if p.how == nil {
			return errors.New("ended without an error")
		}
		return fmt.Errorf("ended: %w", p.how)
	default:
		return nil
	}
}

// Pause stops the process (SIGSTOP), and returns when none of its threads runs any more.
func (p *Process) Pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	awaitStopped(p.cmd.Process.Pid)
	p.signalChildren(syscall.SIGSTOP) // no more of them come
	return nil
}

// Resume lets a paused process go on.
func (p *Process) Resume() error {
	p.signalChildren(syscall.SIGCONT)
	return p.signal(syscall.SIGCONT)
}

// signalChildren returns the children that it has signalled.
func (p *Process) signalChildren(sig syscall.Signal) []int {
	if !p.forks {
		return nil
	}
	pids := childrenOf(p.cmd.Process.Pid)
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
	return pids
}

func (p *Process) signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		<-p.exited
		return p.Ended()
	}
	return err
}

// Kill ends the process at once, paused or not, and waits for it.
func (p *Process) Kill() {
	if p.forks {
		_ = p.Pause() // no more of its children come
	}
	children := p.signalChildren(syscall.SIGKILL)
	// The only error is that it has ended already.
	_ = p.cmd.Process.Kill()
	<-p.exited
	for _, pid := range children { // they may keep what the next start needs
		for running(pid) {
			time.Sleep(time.Millisecond)
		}
	}
}

// Terminate asks the process to end with sig, if it has not; a paused one has to be
// woken for it.
func (p *Process) Terminate(sig syscall.Signal) {
	_ = p.signal(sig)
	_ = p.Resume()
}
