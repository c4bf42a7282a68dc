package torture_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
)

func files(t *testing.T) *torture.Harness {
	const ttl = 2 * time.Second
	dir := t.TempDir()
	return &torture.Harness{
		Name:   "file",
		TTL:    ttl,
		URL:    func(int) string { return "file://" + dir },
		Direct: func() (lock.Locker, error) { return filelock.New(filelock.Config{Dir: dir}) },
		Faults: slices.Concat(torture.ProcessFaults(), []torture.Fault{
			torture.Deletion(func(key string) { _ = os.Remove(filepath.Join(dir, key+".lock")) }),
		}),
	}
}
