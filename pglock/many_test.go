package pglock_test

import (
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// Ten thousand locks are held for three TTLs: none is lost, and they cost neither a
// goroutine nor a connection each.
func TestManyLocks(t *testing.T) {
	const n, ttl, crowd = 10_000, 5 * time.Second, 64
	s := testserver.Postgres(t)
	admin := dial(t, s)
	l := mustOpen(t, s, "ttl="+ttl.String())
	release(t, tryAcquire(t, l, "warm-up"))
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	handles := make([]lock.Handle, n)
	each := func(f func(i int)) {
		var all sync.WaitGroup
		for first := range crowd {
			all.Go(func() {
				for i := first; i < n; i += crowd {
					f(i)
				}
			})
		}
		all.Wait()
	}
	began := time.Now()
	each(func(i int) {
		var err error
		if handles[i], err = l.TryAcquire(t.Context(), "order-"+strconv.Itoa(i)); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	bytes := (heapInUse() - heap) / n
	t.Logf("%d locks acquired in %v, %d bytes of heap each", n, time.Since(began), bytes)
	if bytes > 1024 {
		t.Errorf("%d bytes of heap a lock, want at most a KiB", bytes)
	}
	most := 0
	for end := time.Now().Add(3 * ttl); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		most = max(most, sessions(t, admin))
	}
	if more := runtime.NumGoroutine() - goroutines; more > 20 {
		t.Errorf("%d more goroutines than before, want a few", more)
	}
	if most > 4 {
		t.Errorf("%d connections, want at most 4", most)
	}
	lost := 0
	for _, h := range handles {
		if h.Err() != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d locks were lost", lost, n)
	}
	each(func(i int) {
		if err := handles[i].Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if left := lockRows(t, admin); left != 0 {
		t.Errorf("%d locks are left", left)
	}
}

func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A server that has no room for more locks says so, and what to do; what is held stays.
func TestTooManyLocks(t *testing.T) {
	s := testserver.Postgres(t, testserver.Args("-c", "max_locks_per_transaction=10", "-c", "max_connections=10"))
	l := mustOpen(t, s, "")
	var handles []lock.Handle
	var full error
	for i := range 100_000 {
		h, err := l.TryAcquire(t.Context(), "many-"+strconv.Itoa(i))
		if err != nil {
			full = err
			break
		}
		handles = append(handles, h)
	}
	t.Logf("%d locks: %v", len(handles), full)
	if full == nil || !strings.Contains(full.Error(), "max_locks_per_transaction") || errors.Is(full, lock.ErrHeld) {
		t.Fatalf("%v, want an error that names max_locks_per_transaction", full)
	}
	for _, h := range handles {
		if err := h.Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, h := range handles[:len(handles)/2] {
		release(t, h)
	}
	release(t, tryAcquire(t, l, "one more"))
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if n := lockRows(t, dial(t, s)); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}
