package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestFullDisk: the message is about the disk, not about a server.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Skipf("a file system of its own needs root: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "data"), make([]byte, 4<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, onFiles(t, dir, "--no-wait", "k", "--", "true")).want(exitUnavailable, "make room", "no space left")
}
