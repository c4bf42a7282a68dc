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

// lossy starts script under a lock that is lost when the returned function is
// called. $1 is the log, to which the stub writes too.
func lossy(t *testing.T, script string, flags ...string) (p *process, log string, lose func()) {
	t.Helper()
	dir := t.TempDir()
	log, sign := filepath.Join(dir, "log"), filepath.Join(dir, "lose")
	args := append([]string{"run", "--url", "stub:?lose=" + sign + "&log=" + log}, flags...)
	p = start(t, command(t, append(append(args, "k", "--"), sh(script, log)...)...))
	return p, log, func() { touch(t, sign) }
}

// TestLoss: the program is asked to end, and the lock, of which the margin is
// left, is released when it has.
func TestLoss(t *testing.T) {
	p, log, lose := lossy(t, `trap 'sleep 0.2; echo ended >> "$1"; exit 0' TERM; echo ready; while :; do sleep 0.01; done`)
	awaitLine(t, p.out)
	lose()
	p.want(exitLost, "lost", `"k"`, "the stub says so")
	if got := read(t, log); !strings.HasSuffix(got, "ended\nreleased\nclosed\n") {
		t.Errorf("log %q", got)
	}
}

// TestLossKills: whoever ignores TERM is killed after the grace.
func TestLossKills(t *testing.T) {
	p, _, lose := lossy(t, `trap "" TERM; echo ready; while :; do sleep 0.01; done`, "--ttl", "4s", "--grace", "500ms")
	awaitLine(t, p.out)
	begin := time.Now()
	lose()
	p.want(exitLost, "lost")
	if took := time.Since(begin); took < 500*time.Millisecond || took > patience/2 {
		t.Errorf("took %v, want about 500ms", took)
	}
}

// TestLossEndsTheGroup: a member that outlives the program has its grace too, and
// does not outlive the lock.
func TestLossEndsTheGroup(t *testing.T) {
	t.Run("obedient", func(t *testing.T) {
		p, log, lose := lossy(t, `(trap 'sleep 0.3; echo member >> "$1"; exit' TERM; echo ready; while :; do sleep 0.01; done) & wait`)
		awaitLine(t, p.out)
		lose()
		p.want(exitLost, "lost")
		if got := read(t, log); !strings.HasSuffix(got, "member\nreleased\nclosed\n") {
			t.Errorf("log %q", got)
		}
	})
	t.Run("stubborn", func(t *testing.T) {
		p, log, lose := lossy(t, `(trap "" TERM; echo ready; while :; do sleep 0.01; done) & echo $! >> "$1"; wait`, "--ttl", "4s", "--grace", "300ms")
		awaitLine(t, p.out)
		var pid int
		eventually(t, "the number of the member", func() (ok bool) {
			lines := strings.Fields(read(t, log))
			n, err := strconv.Atoi(lines[len(lines)-1])
			pid = n
			return err == nil
		})
		lose()
		p.want(exitLost, "lost")
		if !gone(pid) {
			t.Error("the member still runs")
		}
	})
}

// TestLossWhileStopped: a stopped program can still be asked to end.
func TestLossWhileStopped(t *testing.T) {
	p, log, lose := lossy(t, `trap 'echo ended >> "$1"; exit 0' TERM; echo $$; while :; do sleep 0.01; done`)
	pid, err := strconv.Atoi(awaitLine(t, p.out))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	lose()
	p.want(exitLost, "lost")
	if got := read(t, log); !strings.HasSuffix(got, "ended\nreleased\nclosed\n") {
		t.Errorf("log %q", got)
	}
}

// TestLossWithFullStderr: a message that nobody reads does not delay the kill.
func TestLossWithFullStderr(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := w.SetWriteDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := w.Write(make([]byte, 1)); err != nil {
			break // full
		}
	}
	sign := filepath.Join(t.TempDir(), "lose")
	cmd := command(t, append([]string{"run", "--url", "stub:?ttl=1s&lose=" + sign, "k", "--"}, sh(`trap "" TERM; echo $$; while :; do sleep 0.01; done`)...)...)
	cmd.Stderr = w
	p := start(t, cmd)
	w.Close()
	pid, err := strconv.Atoi(awaitLine(t, p.out))
	if err != nil {
		t.Fatal(err)
	}
	touch(t, sign)
	eventually(t, "the program has ended", func() bool { return gone(pid) })
	go func() { _, _ = io.Copy(io.Discard, r) }()
	if code := p.exit(); code != exitLost {
		t.Errorf("exit code %d, want %d", code, exitLost)
	}
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
	p, _, _ := lossy(t, `trap "exit 0" TERM; touch "$(dirname "$1")/lose"; while :; do sleep 0.01; done`)
	p.want(exitLost, "lost")
}
