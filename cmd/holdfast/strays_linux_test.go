package main

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestLossEndsStrays: what has left the program's group, as the commands of timeout(1)
// and of a shell with job control do, is asked to end, has its grace, and does not
// outlive the lock.
func TestLossEndsStrays(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		t.Run("obedient", func(t *testing.T) {
			p, log := s.lossy(`set -m; (trap 'sleep 0.3; echo stray >> "$1"; exit' TERM; echo ready; while :; do sleep 0.01; done) & wait`)
			awaitLine(t, p.out)
			s.take()
			p.want(exitLost, "lost")
			if got := read(t, log); got != "stray\n" {
				t.Errorf("log %q", got)
			}
		})
		t.Run("stubborn", func(t *testing.T) {
			p, log := s.lossy(`timeout -s KILL 60 sh -c 'trap "" TERM; echo $$ > "$1"; while :; do sleep 0.01; done' sh "$1"; true`, "--grace", "300ms")
			pid, err := strconv.Atoi(awaitLine(t, log))
			if err != nil {
				t.Fatal(err)
			}
			s.take()
			p.want(exitLost, "lost")
			if !gone(pid) {
				t.Error("the stray still runs")
			}
		})
		t.Run("the program", func(t *testing.T) {
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			p := s.run([]string{"--ttl", "4s", "--grace", "300ms"}, self, helperPrefix+"moves")
			pid, err := strconv.Atoi(awaitLine(t, p.out))
			if err != nil {
				t.Fatal(err, p.stdout())
			}
			p.signal(syscall.SIGUSR1)
			eventually(t, "the signal", func() bool { return strings.Contains(p.stdout(), syscall.SIGUSR1.String()) })
			s.take()
			p.want(exitLost, "lost")
			if !gone(pid) {
				t.Error("the program still runs")
			}
			if got := p.stdout(); strings.Count(got, syscall.SIGUSR1.String()) != 1 || strings.Count(got, syscall.SIGTERM.String()) != 1 {
				t.Errorf("signals: %q", got)
			}
		})
	})
}

// TestLeavesDaemonsAlone: neither waited for nor guarded, as the help says.
func TestLeavesDaemonsAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p, log := s.lossy(`(setsid sh -c 'echo $$ > "$1"; exec sleep 60' sh "$1" &); while ! [ -s "$1" ]; do sleep 0.01; done; echo ready; while :; do sleep 0.01; done`)
		awaitLine(t, p.out)
		daemon, err := strconv.Atoi(awaitLine(t, log))
		if err != nil {
			t.Fatal(err)
		}
		s.take()
		p.want(exitLost, "lost")
		if gone(daemon) {
			t.Error("the daemon was ended")
		}
		_ = syscall.Kill(daemon, syscall.SIGKILL)
	})
}
