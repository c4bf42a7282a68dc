//go:build unix

package main

import (
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lossy starts script under a lock that can be taken away. $1 is a log.
func (s *site) lossy(script string, flags ...string) (p *process, log string) {
	s.t.Helper()
	log = filepath.Join(s.t.TempDir(), "log")
	return s.run(append([]string{"--ttl", "4s"}, flags...), sh(script, log)...), log
}

// TestLoss: the program is asked to end, and holdfast ends when it has.
func TestLoss(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p, log := s.lossy(`trap 'sleep 0.2; echo ended >> "$1"; exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
		awaitLine(t, p.out)
		s.take()
		p.want(exitLost, "lost", strconv.Quote(s.key))
		if got := read(t, log); got != "ended\n" {
			t.Errorf("log %q", got)
		}
	})
}

// TestLossKills: whoever ignores TERM is killed after the grace.
func TestLossKills(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p, log := s.lossy(`trap 'date +%s%N > "$1"' TERM; echo ready; while :; do sleep 0.01; done`, "--grace", "500ms")
		awaitLine(t, p.out)
		s.take()
		p.want(exitLost, "lost")
		asked, err := strconv.ParseInt(strings.TrimSpace(read(t, log)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(time.Unix(0, asked)); took < 400*time.Millisecond || took > patience/2 {
			t.Errorf("ended %v after TERM, want about 500ms", took)
		}
	})
}

// TestLossEndsTheGroup: a member that outlives the program has its grace too, and
// does not outlive the lock.
func TestLossEndsTheGroup(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		t.Run("obedient", func(t *testing.T) {
			p, log := s.lossy(`(trap 'sleep 0.3; echo member >> "$1"; exit' TERM; echo ready; while :; do sleep 0.01; done) & wait`)
			awaitLine(t, p.out)
			s.take()
			p.want(exitLost, "lost")
			if got := read(t, log); got != "member\n" {
				t.Errorf("log %q", got)
			}
		})
		t.Run("stubborn", func(t *testing.T) {
			p, log := s.lossy(`(trap "" TERM; echo ready; while :; do sleep 0.01; done) & echo $! >> "$1"; wait`, "--grace", "300ms")
			awaitLine(t, p.out)
			pid, err := strconv.Atoi(awaitLine(t, log))
			if err != nil {
				t.Fatal(err)
			}
			s.take()
			p.want(exitLost, "lost")
			if !gone(pid) {
				t.Error("the member still runs")
			}
		})
	})
}

// TestLossWhileStopped: a stopped program can still be asked to end.
func TestLossWhileStopped(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p, log := s.lossy(`trap 'echo ended >> "$1"; exit 0' TERM; echo $$; while :; do sleep 0.01; done`)
		pid, err := strconv.Atoi(awaitLine(t, p.out))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		s.take()
		p.want(exitLost, "lost")
		if got := read(t, log); got != "ended\n" {
			t.Errorf("log %q", got)
		}
	})
}

// TestMaxHold: as a loss; and the lock is free when the program has ended.
func TestMaxHold(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p, log := s.lossy(`trap 'sleep 0.2; echo ended >> "$1"; exit 0' TERM; echo ready; while :; do sleep 0.01; done`, "--max-hold", "2s")
		awaitLine(t, p.out)
		next := s.run(nil, "sh", "-c", `echo next >> "$0"`, log)
		p.want(exitLost, "--max-hold 2s", `"sh"`)
		next.want(0)
		if got := read(t, log); got != "ended\nnext\n" {
			t.Errorf("log %q", got)
		}
		s.run([]string{"--max-hold", "1m"}, sh("exit 3")...).want(3)
		s.run([]string{"--max-hold", "1ns"}, "true").want(exitLost, "--max-hold 1ns", "nothing was started")
	})
}

// TestLossWhileHoldfastIsStopped: whoever learns of the loss when the time to end has
// passed leaves the program no grace, as others may be at work.
func TestLossWhileHoldfastIsStopped(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p, log := s.lossy(`trap 'echo asked >> "$1"; sleep 2.5; echo late >> "$1"' TERM; echo ready; while :; do sleep 0.01; done`,
			"--ttl", "30s", "--grace", "4s", "--max-hold", "3s")
		awaitLine(t, p.out)
		p.signal(syscall.SIGSTOP)
		time.Sleep(8 * time.Second)
		p.signal(syscall.SIGCONT)
		p.want(exitLost, "--max-hold")
		if got := read(t, log); strings.Contains(got, "late") {
			t.Errorf("log %q: the program had a grace", got)
		}
	})
}

// TestLossByExpiryWhileHoldfastIsStopped: the same where the lease has run out, be it that
// holdfast was stopped at some time or as soon as there was a program.
func TestLossByExpiryWhileHoldfastIsStopped(t *testing.T) {
	for name, first := range map[string]string{"later": "", "at once": "kill -STOP $PPID; "} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redisSite(t)
			p, log := s.lossy(first+`trap 'sleep 2.5; echo late >> "$1"' TERM; echo ready; while :; do sleep 0.01; done`, "--ttl", "8s", "--grace", "3s")
			awaitLine(t, p.out)
			p.signal(syscall.SIGSTOP)
			next := s.run(nil, "true")
			next.want(0)
			p.signal(syscall.SIGCONT)
			p.want(exitLost, "lost")
			if got := read(t, log); got != "" {
				t.Errorf("log %q: the program had a grace while another had the lock: %s", got, p.stderr())
			}
		})
	}
}

// full returns a pipe that has no room.
func full(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	for {
		if err := w.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if n, _ := w.Write(make([]byte, 1<<10)); n == 0 {
			return r, w
		}
	}
}

// TestLossWithFullStderr: a message that nobody reads does not delay the kill.
func TestLossWithFullStderr(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		for _, verbosity := range []string{"--verbose=false", "--verbose"} {
			r, w := full(t)
			cmd := s.runCommand([]string{"--ttl", "2s", verbosity}, sh(`trap "" TERM; echo $$; while :; do sleep 0.01; done`)...)
			cmd.Stderr = w
			p := start(t, cmd)
			w.Close()
			pid, err := strconv.Atoi(awaitLine(t, p.out))
			if err != nil {
				t.Fatal(err)
			}
			s.take()
			eventually(t, "the program has ended", func() bool { return gone(pid) })
			go func() { _, _ = io.Copy(io.Discard, r) }()
			if code := p.exit(); code != exitLost {
				t.Errorf("exit code %d, want %d", code, exitLost)
			}
		}
	})
}

// TestLossBeforeStart: nothing is started under a lock that is known to be lost.
func TestLossBeforeStart(t *testing.T) {
	dir := t.TempDir()
	sign, log, ran := filepath.Join(dir, "lose"), filepath.Join(dir, "log"), filepath.Join(dir, "ran")
	touch(t, sign)
	runStub(t, "lose="+sign+"&log="+log, "touch", ran).want(exitLost, "nothing was started")
	if got := read(t, log); !strings.HasSuffix(got, "released\nclosed\n") {
		t.Errorf("log %q", got)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the program was started")
	}
}

// TestLossAtTheEnd: 76 stands above the program's own code even if it has ended by
// itself.
func TestLossAtTheEnd(t *testing.T) {
	sign := filepath.Join(t.TempDir(), "lose")
	runStub(t, "lose="+sign, sh(`trap "exit 0" TERM; touch "$1"; while :; do sleep 0.01; done`, sign)...).want(exitLost, "lost")
}
