//go:build unix

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

// The tests run holdfast as real processes. Those that need no server run this
// test binary with stubVariable set: it is then the command, with openStub as its
// only backend. The others build the command itself.
const stubVariable = "HOLDFAST_TEST_STUB"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && strings.HasPrefix(os.Args[1], helperPrefix) {
		helper(strings.TrimPrefix(os.Args[1], helperPrefix), os.Args[2:])
		os.Exit(0)
	}
	if os.Getenv(stubVariable) != "" {
		os.Exit(execute(os.Args[1:], openStub))
	}
	// Started with "&" by a script, the tests would hand its ignored INT down to
	// every shell, which could not trap it. What is caught, children do not ignore.
	for _, sig := range waitEnders {
		if signal.Ignored(sig) {
			signal.Notify(make(chan os.Signal, 1), sig)
		}
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(buildDir())
		testserver.RemoveClusters()
		os.Exit(code)
	}))
}

var buildDir = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "holdfast-cmd")
	if err != nil {
		panic(err)
	}
	return dir
})

// build returns the path of the command as users get it.
var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir(), "holdfast")
	if out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return path, nil
})

// helperPrefix marks the first argument with which this binary plays a program
// that holdfast runs.
const helperPrefix = "-helper="

func helper(name string, args []string) {
	switch name {
	case "args": // prints its arguments
		_ = json.NewEncoder(os.Stdout).Encode(args)
	case "wakes": // writes a line to a file when it is resumed or should end
		c := make(chan os.Signal, 64)
		signal.Notify(c, syscall.SIGCONT, syscall.SIGTERM)
		fmt.Println("process", os.Getpid())
		for sig := range c {
			_ = os.WriteFile(args[0], []byte(sig.String()), 0o600)
		}
	case "moves": // goes to its parent's group and prints what it is told, by signals
		group, err := syscall.Getpgid(os.Getppid())
		if err == nil {
			err = syscall.Setpgid(0, group)
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		c := make(chan os.Signal, 64)
		signal.Notify(c, syscall.SIGUSR1, syscall.SIGTERM)
		fmt.Println(os.Getpid())
		for sig := range c {
			fmt.Println(sig)
		}
	case "adopts": // is given orphans, as the first process of a container is, and becomes a command
		panic(errors.Join(adoptOrphans(), syscall.Exec(args[0], args, os.Environ())))
	case "signals": // prints the names of the signals that it gets, until TERM
		c := make(chan os.Signal, 64)
		signal.Notify(c)
		fmt.Println("ready")
		for sig := range c {
			if sig == syscall.SIGURG { // the runtime's own
				continue
			}
			fmt.Println(int(sig.(syscall.Signal)))
			if sig == syscall.SIGTERM {
				return
			}
		}
	}
}

// patience is how long the tests wait for what should be a matter of milliseconds.
const patience = 30 * time.Second

// process is one holdfast that runs. Its output goes to files, which nobody has to
// read for it to go on.
type process struct {
	t       *testing.T
	cmd     *exec.Cmd
	out     string
	err     string
	done    chan struct{}
	waitErr error
}

// command prepares holdfast with the stub as its backend.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	// With the race detector, each process would sleep for a second at its end.
	cmd.Env = append(os.Environ(), stubVariable+"=1", "GORACE=atexit_sleep_ms=0")
	return cmd
}

func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	dir := t.TempDir()
	p := &process{t: t, cmd: cmd, out: filepath.Join(dir, "out"), err: filepath.Join(dir, "err"), done: make(chan struct{})}
	var files []*os.File
	open := func(path string) *os.File {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
		return f
	}
	if cmd.Stdout == nil {
		cmd.Stdout = open(p.out)
	}
	if cmd.Stderr == nil {
		cmd.Stderr = open(p.err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		_ = f.Close()
	}
	go func() {
		p.waitErr = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
	})
	return p
}

// exit waits for the end and returns the exit code; -1 if a signal ended it.
func (p *process) exit() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("holdfast has not ended\nstdout: %s\nstderr: %s", p.stdout(), p.stderr())
	}
	if _, ok := errors.AsType[*exec.ExitError](p.waitErr); p.waitErr != nil && !ok {
		p.t.Fatal(p.waitErr)
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *process) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

func (p *process) stdout() string { return read(p.t, p.out) }
func (p *process) stderr() string { return read(p.t, p.err) }

// want checks the exit code, and that holdfast said one line that contains each of
// texts; without texts, that it said nothing.
func (p *process) want(code int, texts ...string) {
	p.t.Helper()
	if got := p.exit(); got != code {
		p.t.Errorf("exit code %d, want %d", got, code)
	}
	said := p.stderr()
	if len(texts) == 0 {
		if said != "" {
			p.t.Errorf("stderr %q, want nothing", said)
		}
		return
	}
	if !strings.HasPrefix(said, "holdfast: ") || strings.Count(said, "\n") != 1 || strings.Count(said, "holdfast: ") != 1 {
		p.t.Errorf("stderr %q, want one line that begins with holdfast:", said)
	}
	for _, text := range texts {
		if !strings.Contains(said, text) {
			p.t.Errorf("stderr %q does not contain %q", said, text)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return string(b)
}

func touch(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok returns true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// awaitFile waits for a whole line in the file and returns the first.
func awaitLine(t *testing.T, path string) string {
	t.Helper()
	var line string
	eventually(t, "a line in "+path, func() (ok bool) {
		line, _, ok = strings.Cut(read(t, path), "\n")
		return ok
	})
	return line
}

// gone says whether the process does not run any more.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	// Whoever was adopted by a process that does not wait for it stays a zombie.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(stat, []byte(") Z "))
}
