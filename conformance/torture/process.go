package torture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
)

// process is one life of a worker in a process of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr bytes.Buffer
	exited chan struct{}
	err    error // why it ended; read it after exited
}

// startProcess starts this binary again, as a worker: see Main.
func startProcess(j job, log *os.File) (*process, error) {
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(os.Args[0]), exited: make(chan struct{})} //nolint:gosec // itself
	p.cmd.Env = append(os.Environ(), jobVariable+"="+string(text))
	p.cmd.ExtraFiles = []*os.File{log}
	p.cmd.Stderr = &p.stderr
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	started := make(chan error)
	go func() {
		// The kernel kills the child with the thread that has started it, and Go ends
		// threads as it likes: this one is kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		dieWithUs(p.cmd)
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	return p, <-started
}

// signal sends a signal; a process that has ended has no use for it.
func (p *process) signal(sig syscall.Signal) { _ = p.cmd.Process.Signal(sig) }

// finish has it end by itself.
func (p *process) finish() { _ = p.stdin.Close() }

// wasKilled says whether a process that has ended was killed: by us, or by itself.
func (p *process) wasKilled() bool {
	exit, ok := errors.AsType[*exec.ExitError](p.err)
	if !ok {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGKILL
}

// failure returns why it ended, if it was neither killed nor successful.
func (p *process) failure() error {
	if p.err == nil || p.wasKilled() {
		return nil
	}
	return fmt.Errorf("%w\n%s", p.err, bytes.TrimSpace(p.stderr.Bytes()))
}
