package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
)

// process is one run of a program.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has ended and been waited for
	how    error         // what Wait said; read it after exited
}

// start runs cmd such that it ends when this process does.
func start(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error)
	go func() {
		// What dieWithUs asks for happens when the thread ends that started the
		// child, and Go ends threads as it likes: this one is kept as long as the
		// child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		dieWithUs(cmd)
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.how = cmd.Wait()
		close(p.exited)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// ended returns how the process ended, or nil if it runs.
func (p *process) ended() error {
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

func (p *process) pause() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	awaitStopped(p.cmd.Process.Pid)
	return nil
}

func (p *process) resume() error {
	return p.signal(syscall.SIGCONT)
}

func (p *process) signal(sig os.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		<-p.exited
		return p.ended()
	}
	return err
}

// kill ends the process at once, stopped or not, and waits for it.
func (p *process) kill() {
	// The only error is that it has ended already.
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// terminate asks the process to end, if it has not; a stopped one has to be woken
// for it.
func (p *process) terminate() {
	_ = p.signal(syscall.SIGTERM)
	_ = p.resume()
}

func lookPath(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("testserver: %s is not installed; run: make setup", program)
	}
	return path
}

// appendTo opens a log file that several runs write to, one after the other.
func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}
