package driver_test

import (
	"runtime"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// Locks that are held cost no goroutine, and at most a KiB of heap each, that of the
// server in memory included.
func TestManyLocks(t *testing.T) {
	const most = 1024 // bytes a lock
	n := 100_000
	if raceEnabled {
		n = 5_000
	}
	keys := make([]string, n)
	for i := range keys {
		keys[i] = "order-" + strconv.Itoa(i)
	}
	for name, opts := range map[string][]memlock.Option{"Sessions": nil, "OwnLeases": {memlock.OwnLeases()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, err := memlock.NewServer(opts...).Locker(lock.Config{})
				if err != nil {
					t.Fatal(err)
				}
				handles := make([]lock.Handle, n)
				before, goroutines := heap(), runtime.NumGoroutine()
				for i, key := range keys {
					handles[i] = mustTry(t, l, key)
				}
				synctest.Wait()
				each := (heap() - before) / uint64(n)
				if more := runtime.NumGoroutine() - goroutines; more > 10 {
					t.Errorf("%d locks are held by %d goroutines", n, more)
				}
				if each > most && !raceEnabled {
					t.Errorf("a lock takes %d bytes of heap, want at most %d", each, most)
				}
				time.Sleep(2 * lock.DefaultTTL)
				for _, h := range handles {
					if err := h.Err(); err != nil {
						t.Fatal(err)
					}
				}
				began := time.Now()
				if err := l.Close(); err != nil {
					t.Error(err)
				}
				t.Logf("%d locks: %d bytes each; closed in %v", n, each, time.Since(began))
			})
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
