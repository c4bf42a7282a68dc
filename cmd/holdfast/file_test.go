//go:build linux || darwin

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock/filelock"
)

// onFiles prepares the command on a directory of the test's own.
func onFiles(t *testing.T, dir string, args ...string) *exec.Cmd {
	t.Helper()
	return builtOn(t, "file://"+dir, args...)
}

func TestFileTurns(t *testing.T) {
	takeTurns(t, "file://"+t.TempDir())
}

// TestDefaultBackend: with nothing said, nothing installed, it works; and what it uses is
// the same whatever the environment says.
func TestDefaultBackend(t *testing.T) {
	dir, err := filelock.UserDir()
	if err != nil {
		t.Skip(err) // a user without a home
	}
	key := "holdfast-test-" + strconv.Itoa(os.Getpid())
	path := filepath.Join(dir, key+".lock")
	t.Cleanup(func() { _ = os.Remove(path) })
	start(t, builtOn(t, "", key, "--", "true")).want(0)
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	end := filepath.Join(t.TempDir(), "end")
	holder := start(t, builtOn(t, "", append([]string{key, "--"}, sh(`echo ready; while [ ! -e "$1" ]; do sleep 0.01; done`, end)...)...))
	awaitLine(t, holder.out)
	other := builtOn(t, "", "--no-wait", key, "--", "true")
	other.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "XDG_STATE_HOME=/nonexistent"}
	start(t, other).want(exitBusy, strconv.Quote(key))
	touch(t, end)
	holder.want(0)
}

// TestFileKilledHolder: the lock is free at once, and the program of the first does not
// run beside the second's.
func TestFileKilledHolder(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system does not tell the program")
	}
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	holder := start(t, onFiles(t, dir, append([]string{"--ttl", "1h", "job", "--"}, sh(writer, log)...)...))
	awaitLine(t, holder.out)
	next := start(t, onFiles(t, dir, append([]string{"job", "--"}, sh(`echo two >> "$1"`, log)...)...))
	holder.signal(syscall.SIGKILL)
	next.want(0)
	// The kernel frees the lock and kills the program in an order of its own: what the
	// program writes in the last moment may come late, and no more after it.
	time.Sleep(200 * time.Millisecond)
	size := len(read(t, log))
	time.Sleep(200 * time.Millisecond)
	if grown := len(read(t, log)); grown != size {
		t.Error("the first program runs on")
	}
}

// TestFileRemovedUnderTheHolder: its program is stopped.
func TestFileRemovedUnderTheHolder(t *testing.T) {
	dir := t.TempDir()
	holder := start(t, onFiles(t, dir, append([]string{"--ttl", "2s", "job", "--"}, sh(`echo ready; exec sleep 600`)...)...))
	awaitLine(t, holder.out)
	if err := os.Remove(filepath.Join(dir, "job.lock")); err != nil {
		t.Fatal(err)
	}
	holder.want(exitLost, "lost", `"job"`)
}

// TestFileIsNotInherited: neither by the program, nor by what it leaves behind, which
// also keeps the output open.
func TestFileIsNotInherited(t *testing.T) {
	dir := t.TempDir()
	pid := filepath.Join(dir, "pid")
	p := start(t, onFiles(t, dir, "job", "--", "sh", "-c", `sleep 600 & echo $! > "$0"; exit 0`, pid))
	p.want(0)
	n, err := strconv.Atoi(awaitLine(t, pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(n, syscall.SIGKILL) })
	start(t, onFiles(t, dir, "--no-wait", "job", "--", "true")).want(0)
	if runtime.GOOS != "linux" {
		return
	}
	descriptors, err := filepath.Glob("/proc/" + strconv.Itoa(n) + "/fd/*")
	if err != nil || len(descriptors) < 3 {
		t.Fatalf("the descriptors of a process: %q, %v", descriptors, err)
	}
	for _, d := range descriptors { // beside those that the tests' own parent has left open
		if to, _ := os.Readlink(d); strings.HasSuffix(to, ".lock") {
			t.Errorf("the program has %s", to)
		}
	}
}

func TestFileExitCodes(t *testing.T) {
	dir := t.TempDir()
	start(t, onFiles(t, dir, "job", "--", "sh", "-c", "exit 3")).want(3)
	start(t, onFiles(t, dir+"/none", "job", "--", "true")).want(exitConfig, "none", "make it")
	start(t, builtOn(t, "file:relative", "job", "--", "true")).want(exitConfig, "file:///directory")
	if err := os.WriteFile(filepath.Join(dir, "foreign.lock"), []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, onFiles(t, dir, "foreign", "--", "true")).want(exitConfig, "foreign.lock", "move it away")
	waiting := start(t, onFiles(t, dir, "held", "--", "sleep", "600"))
	until := time.Now().Add(patience)
	for {
		if _, err := os.Stat(filepath.Join(dir, "held.lock")); err == nil || time.Now().After(until) {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	second := start(t, onFiles(t, dir, "held", "--", "true"))
	time.Sleep(100 * time.Millisecond)
	second.signal(syscall.SIGTERM)
	second.want(128+int(syscall.SIGTERM), "nothing was started")
	waiting.signal(syscall.SIGTERM)
	waiting.want(128 + int(syscall.SIGTERM))
}
