//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestSignalsAreForwardedOnce(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	send := []syscall.Signal{
		syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH,
		syscall.SIGALRM, syscall.SIGABRT, syscall.SIGCONT, syscall.SIGINT, syscall.SIGTSTP,
	}
	for _, sig := range platformSignals() {
		send = append(send, sig.(syscall.Signal))
	}
	everywhere(t, func(t *testing.T, s *site) {
		p := s.run(nil, self, helperPrefix+"signals")
		awaitLine(t, p.out)
		want := "ready\n"
		for _, sig := range append(send, syscall.SIGTERM) {
			p.signal(sig)
			want += fmt.Sprintln(int(sig))
			eventually(t, fmt.Sprintf("signal %d arrived", sig), func() bool { return len(p.stdout()) >= len(want) })
		}
		p.want(0)
		if got := p.stdout(); got != want {
			t.Errorf("signals %q, want %q", strings.Fields(got), strings.Fields(want))
		}
	})
}

// TestSignalReachesTheGroup: as the terminal would do it.
func TestSignalReachesTheGroup(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p := s.run(nil, sh(`trap 'wait; echo leader; exit 4' USR1; (trap 'echo member; exit' USR1; echo ready; while :; do sleep 0.01; done) & wait`)...)
		eventually(t, "ready", func() bool { return strings.Contains(p.stdout(), "ready") })
		p.signal(syscall.SIGUSR1)
		if code := p.exit(); code != 4 {
			t.Errorf("exit code %d, want 4", code)
		}
		if got := p.stdout(); got != "ready\nmember\nleader\n" {
			t.Errorf("output %q", got)
		}
	})
}

// TestHeldWhileDraining: TERM is the program's business, even if that takes longer than
// the TTL; the lock is released when it has ended.
func TestHeldWhileDraining(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		log := filepath.Join(t.TempDir(), "log")
		holder := s.run([]string{"--ttl", "1s"},
			sh(`trap 'echo draining; sleep 2.5; echo "one ends" >> "$1"; exit 6' TERM; echo ready; while :; do sleep 0.01; done`, log)...)
		awaitLine(t, holder.out)
		next := s.run([]string{"-v"}, sh(`echo "two starts" >> "$1"`, log)...)
		eventually(t, "the next waits", func() bool { return strings.Contains(next.stderr(), "contended") })
		holder.signal(syscall.SIGTERM)
		holder.want(6)
		if code := next.exit(); code != 0 {
			t.Errorf("exit code %d of the next", code)
		}
		if got := read(t, log); got != "one ends\ntwo starts\n" {
			t.Errorf("log %q", got)
		}
	})
}

func TestSignalsEndTheWait(t *testing.T) {
	for _, where := range []string{"open=hang", "acquire=busy", "acquire=unavailable", "acquire=late"} {
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
			t.Run(fmt.Sprintf("%s %v", where, sig), func(t *testing.T) {
				dir := t.TempDir()
				log, ran := filepath.Join(dir, "log"), filepath.Join(dir, "ran")
				p := runStub(t, where+"&log="+log, "touch", ran)
				awaitLine(t, log)
				p.signal(syscall.SIGUSR1) // is not for the wait
				p.signal(syscall.SIGWINCH)
				p.signal(sig)
				p.want(128+int(sig), "nothing was started")
				if _, err := os.Stat(ran); err == nil {
					t.Error("the program was started after the signal")
				}
				if got := read(t, log); strings.Contains(got, "acquired") && !strings.HasSuffix(got, "released\nclosed\n") {
					t.Errorf("log %q: what was granted late was not released", got)
				}
			})
		}
	}
}

// TestSignalsEndTheWaitForAHolder: whatever the backend is doing then.
func TestSignalsEndTheWaitForAHolder(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		holder := s.run(nil, sh(`trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`)...)
		awaitLine(t, holder.out)
		ran := filepath.Join(t.TempDir(), "ran")
		for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
			waiter := s.run([]string{"-v"}, "touch", ran)
			eventually(t, "it waits", func() bool { return strings.Contains(waiter.stderr(), "contended") })
			waiter.signal(syscall.SIGUSR1) // is not for the wait
			waiter.signal(sig)
			if code := waiter.exit(); code != 128+int(sig) || !strings.Contains(waiter.stderr(), "nothing was started") {
				t.Errorf("%v: exit code %d, stderr %q", sig, code, waiter.stderr())
			}
		}
		holder.signal(syscall.SIGTERM)
		holder.want(0)
		if !s.free() {
			t.Error("those who waited have left something behind")
		}
		if _, err := os.Stat(ran); err == nil {
			t.Error("a program was started after the signal")
		}
	})
}

// TestInheritedIgnoreIsKept: under nohup a program is not reached by HUP; neither is it
// with a holdfast in between.
func TestInheritedIgnoreIsKept(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		cmd := s.command()
		holdfast := cmd.Path
		cmd.Path = mustLook(t, "sh")
		cmd.Args = []string{"sh", "-c", `trap "" HUP INT; exec "$0" run k -- sh -c 'kill -HUP $$; kill -INT $$; echo alive; read line'`, holdfast}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p := start(t, cmd)
		awaitLine(t, p.out)
		p.signal(syscall.SIGHUP)
		p.signal(syscall.SIGINT)
		_, _ = stdin.Write([]byte("\n"))
		p.want(0)
	})
}

// TestKilledWrapper pins what the help text promises for Linux.
func TestKilledWrapper(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system does not tell the program")
	}
	everywhere(t, func(t *testing.T, s *site) {
		p := s.run(nil, sh(`trap "" TERM; echo $$; while :; do sleep 0.01; done`)...)
		pid, err := strconv.Atoi(awaitLine(t, p.out))
		if err != nil {
			t.Fatal(err)
		}
		p.signal(syscall.SIGKILL)
		eventually(t, "the program has ended", func() bool { return gone(pid) })
	})
}
