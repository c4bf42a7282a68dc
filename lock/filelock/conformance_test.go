package filelock_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/otherprocess"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		dir := t.TempDir()
		return harness(dir, func(_ *testing.T, cfg lock.Config) (lock.Locker, error) {
			return filelock.New(filelock.Config{Config: cfg, Dir: dir})
		})
	})
}

// TestConformanceBetweenProcesses has each Locker in a process of its own.
func TestConformanceBetweenProcesses(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		dir := t.TempDir()
		return harness(dir, func(t *testing.T, cfg lock.Config) (lock.Locker, error) {
			return otherprocess.Open(t, "file://"+dir, func(c *lock.Config) { *c = cfg })
		})
	})
}

// harness is that of a directory, whatever opens it.
func harness(dir string, open func(*testing.T, lock.Config) (lock.Locker, error)) *conformance.Harness {
	const ttl = 2 * time.Second
	openConfig := func(t *testing.T, cfg lock.Config) (lock.Locker, error) {
		if cfg.TTL == 0 {
			cfg.TTL = ttl
		}
		return open(t, cfg)
	}
	const noNetwork = "the kernel has no network"
	return &conformance.Harness{
		TTL:      ttl,
		Term:     lock.MaxTTL,
		Promises: lock.Fencing | lock.Leased,
		Open: func(t *testing.T) lock.Locker {
			l, err := openConfig(t, lock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		OpenConfig: openConfig,
		Revoke: func(t *testing.T, key string) {
			if err := os.Remove(filepath.Join(dir, filelock.FileName(key))); err != nil {
				t.Fatal(err)
			}
		},
		Skip: map[string]string{
			"Isolate": noNetwork, "SlowReplies": noNetwork, "LoseReply": noNetwork,
			"Left":    "the kernel keeps a lock as long as its holder lives",
			"Restart": "the kernel's locks end with all processes, when it does",
		},
	}
}
