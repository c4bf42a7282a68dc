package filelock_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		return harness(t.TempDir())
	})
}

func harness(dir string) *conformance.Harness {
	const ttl = 2 * time.Second
	open := func(_ *testing.T, cfg lock.Config) (lock.Locker, error) {
		if cfg.TTL == 0 {
			cfg.TTL = ttl
		}
		return filelock.New(filelock.Config{Config: cfg, Dir: dir})
	}
	const noNetwork = "the kernel has no network"
	return &conformance.Harness{
		TTL:      ttl,
		Term:     lock.MaxTTL,
		Promises: lock.Fencing | lock.Leased,
		Open: func(t *testing.T) lock.Locker {
			l, err := open(t, lock.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return l
		},
		OpenConfig: open,
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
