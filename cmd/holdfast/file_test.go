//go:build linux || darwin

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
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

func TestFileExitCodes(t *testing.T) {
	dir := t.TempDir()
	start(t, onFiles(t, dir, "job", "--", "sh", "-c", "exit 3")).want(3)
	start(t, onFiles(t, dir+"/none", "job", "--", "true")).want(exitConfig, "none", "make it")
	start(t, builtOn(t, "file:relative", "job", "--", "true")).want(exitConfig, "file:///directory")
	if err := os.WriteFile(filepath.Join(dir, "foreign.lock"), []byte("mine\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, onFiles(t, dir, "foreign", "--", "true")).want(exitConfig, "foreign.lock", "move it away")
}
