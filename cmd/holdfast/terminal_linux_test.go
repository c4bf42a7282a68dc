package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// console is a terminal with a person at it.
type console struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd

	mu     sync.Mutex
	screen strings.Builder
	read   int // up to where expect has looked
}

// openConsole starts cmd as the leader of a session with a terminal of its own.
func openConsole(t *testing.T, cmd *exec.Cmd) *console {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := &console{t: t, master: master, cmd: cmd}
	c.ioctl(syscall.TIOCSPTLCK, 0)
	number := c.ioctl(syscall.TIOCGPTN, 0)
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	slave.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(c, master)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		master.Close()
		<-done
	})
	return c
}

func (c *console) ioctl(request uintptr, value int32) int32 {
	c.t.Helper()
	conn, err := c.master.SyscallConn()
	if err != nil {
		c.t.Fatal(err)
	}
	var errno syscall.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall(syscall.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(&value)))
	})
	if err != nil || errno != 0 {
		c.t.Fatal(err, errno)
	}
	return value
}

// Write adds to the screen.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.screen.Write(p)
}

// enter types text.
func (c *console) enter(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c.master, text); err != nil {
		c.t.Fatal(err)
	}
}

// expect waits for text to appear after what was expected before.
func (c *console) expect(text string) {
	c.t.Helper()
	eventually(c.t, fmt.Sprintf("%q on the screen", text), func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		i := strings.Index(c.screen.String()[c.read:], text)
		if i >= 0 {
			c.read += i + len(text)
		}
		return i >= 0
	})
}

// expectForeground waits for a line that ends in the number of a process, and
// until its group has the terminal: what is typed before, others may get.
func (c *console) expectForeground() {
	c.t.Helper()
	c.expect("process ")
	var pid int
	eventually(c.t, "the number of the process", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		line, _, ok := strings.Cut(c.screen.String()[c.read:], "\r\n")
		pid, _ = strconv.Atoi(line)
		return ok
	})
	eventually(c.t, fmt.Sprintf("process %d has the terminal", pid), func() bool { return int(c.ioctl(syscall.TIOCGPGRP, 0)) == pid })
}

const ctrlC, ctrlZ = "\x03", "\x1a"

// consoleShell opens a shell with job control, in which $hf runs holdfast, as cmd, with
// what comes after it.
func consoleShell(t *testing.T, cmd *exec.Cmd) *console {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	shell := exec.Command("bash", "--norc", "--noprofile", "-i")
	shell.Env = append(cmd.Env, "PS1=", "PS2=", "HISTFILE=", "TERM=dumb", "self="+self, "hf="+strings.Join(cmd.Args, " "))
	c := openConsole(t, shell)
	c.t.Cleanup(func() {
		if c.t.Failed() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.t.Logf("screen: %q", c.screen.String())
		}
	})
	// Without echo, only what programs write is on the screen.
	c.enter("stty -echo; echo shell is $((40+2))\n")
	c.expect("shell is 42")
	return c
}

// TestTerminalWithoutShell: what "ssh -t host holdfast …" and the first process of
// a container see.
func TestTerminalWithoutShell(t *testing.T) {
	everywhere(t, terminalWithoutShell)
}

func terminalWithoutShell(t *testing.T, s *site) {
	c := openConsole(t, s.runCommand(nil, "sh", "-c",
		`stty -echo; trap 'n=$((n+1)); echo got INT' INT; echo process $$; read a; echo "first <$a>"; read b; echo "second <$b> $n"`))
	c.expectForeground()
	c.enter("one\n")
	c.expect("first <one>")
	c.enter(ctrlC)
	c.expect("got INT")
	c.enter(ctrlZ) // nobody could resume it: not suspended for good
	c.enter("two\n")
	c.expect("second <")
	if err := c.cmd.Wait(); err != nil {
		t.Error(err)
	}
	c.expect(" 1\r\n")
}

func TestTerminalGoesToTheProgramAndBack(t *testing.T) {
	everywhere(t, terminalGoesToTheProgramAndBack)
}

func terminalGoesToTheProgramAndBack(t *testing.T, s *site) {
	c := consoleShell(t, s.runCommand(nil))
	c.enter(`$hf sh -c 'read a; echo "got <$a>"'` + "\n")
	c.enter("input\n")
	c.expect("got <input>")
	c.enter(`$hf sh -c 'trap "echo INT; exit 9" INT; echo process $$; while :; do sleep 0.01; done'; echo "code $?"` + "\n")
	c.expectForeground()
	c.enter(ctrlC)
	c.expect("INT")
	c.expect("code 9")
	// A script does not take the terminal back itself: holdfast must.
	c.enter(`bash -c '$hf true; read a; echo "script got <$a>"'` + "\n")
	c.enter("more\n")
	c.expect("script got <more>")
	// In a pipeline the terminal is not holdfast's input, and goes to the program
	// when it asks for it.
	c.enter(`echo x | $hf sh -c 'read a < /dev/tty; echo "asked <$a>"'` + "\n")
	c.enter("answer\n")
	c.expect("asked <answer>")
}

func TestSuspend(t *testing.T) {
	everywhere(t, suspend)
}

func suspend(t *testing.T, s *site) {
	for _, job := range []string{
		`$hf sh -c 'echo process $$; read a; echo "got <$a>"'`,
		`bash -c '$hf sh -c "echo process \$\$; read a; echo \"got <\$a>\""; exit $?'`,
		`echo x | $hf sh -c 'echo process $$; read a < /dev/tty; echo "got <$a>"'`,
	} {
		t.Run(job, func(t *testing.T) {
			c := consoleShell(t, s.runCommand(nil))
			c.enter(job + "\n")
			c.expectForeground()
			c.enter(ctrlZ)
			c.expect("Stopped")
			c.enter("echo shell is $((40+2)); fg\n")
			c.expect("shell is 42")
			c.enter("input\n")
			c.expect("got <input>")
		})
	}
}

// TestLossWhileSuspended: the lock has run out meanwhile, and another has had it; the
// program must not do anything more.
func TestLossWhileSuspended(t *testing.T) {
	s, log := redisSite(t), filepath.Join(t.TempDir(), "log")
	c := consoleShell(t, s.runCommand([]string{"--ttl", "1s"}))
	// Not a shell that starts processes: the kernel does not suspend one in vfork.
	c.enter("$hf $self " + helperPrefix + "wakes " + log + "\n")
	c.expectForeground()
	c.enter(ctrlZ)
	c.expect("Stopped")
	s.run(nil, "true").want(0)
	c.enter("fg; echo \"code $?\"\n")
	c.expect("holdfast: the lock")
	c.expect("code 76")
	if got := read(t, log); got != "" {
		t.Errorf("the program went on: %q", got)
	}
}

// TestHeldWhileSuspended: files need no renewal.
func TestHeldWhileSuspended(t *testing.T) {
	s := fileSite(t)
	c := consoleShell(t, s.runCommand([]string{"--ttl", "1s"}))
	c.enter(`$hf sh -c 'echo process $$; read a; echo "got <$a>"'; echo "code $?"` + "\n")
	c.expectForeground()
	c.enter(ctrlZ)
	c.expect("Stopped")
	s.run([]string{"--wait", "1500ms"}, "true").want(exitBusy, "held")
	c.enter("fg\n")
	c.enter("input\n")
	c.expect("got <input>")
	eventually(t, "the lock is free", s.free)
}
