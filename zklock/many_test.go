package zklock_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// each calls f for each of n, by a crowd of goroutines.
func each(n int, f func(i int)) {
	const crowd = 64
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

func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// monitor returns a figure of the server's.
func monitor(t testing.TB, addr, name string) (n int) {
	t.Helper()
	text, err := testserver.ZooKeeperWord(t.Context(), addr, "mntr")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+"\t"); ok {
			if _, err := fmt.Sscan(value, &n); err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("mntr does not tell %s", name)
	return 0
}

// Ten thousand locks are held for three TTLs: none is lost, they cost no goroutine each, and
// sessions are not so large that a server could not read the record of their end.
func TestManyLocks(t *testing.T) {
	n := 10_000
	if raceEnabled {
		n = 1_000
		zklock.SetMaxPaths(t, 50<<10)
	}
	server := testserver.ZooKeeper(t, testserver.Durable())
	l, err := zklock.New([]string{server.Addr()}, zklock.Config{Config: lock.Config{TTL: ttl}, Tick: tick})
	if err != nil {
		t.Fatal(err)
	}
	release(t, acquire(t, l, "warm-up"))
	direct := dial(t, server.Addr())
	if _, _, err := direct.Children("/holdfast/session"); err != nil { // it has its buffers now
		t.Fatal(err)
	}
	handles := make([]lock.Handle, n)
	goroutines, heap, began := runtime.NumGoroutine(), heapInUse(), time.Now()
	each(n, func(i int) {
		var err error
		if handles[i], err = l.TryAcquire(t.Context(), fmt.Sprint("order-", i)); err != nil {
			t.Error(err)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("%d locks acquired in %v", n, time.Since(began))
	time.Sleep(3 * ttl)
	sessions, _, err := direct.Children("/holdfast/session")
	const buffers = 1792 << 10 // of package zk, for each session
	more, bytes := runtime.NumGoroutine()-goroutines, (heapInUse()-heap-(len(sessions)-1)*buffers)/n
	t.Logf("%d locks on %d sessions: %d more goroutines, %d bytes of heap each, besides the buffers of sessions; the server has %d watches",
		n, len(sessions), more, bytes, monitor(t, server.Addr(), "zk_watch_count"))
	if more > 40 {
		t.Errorf("%d more goroutines than before, want a few", more)
	}
	if !raceEnabled && bytes > 1024 {
		t.Errorf("%d bytes of heap a lock, want at most a KiB", bytes)
	}
	if err != nil || len(sessions) != 2 {
		t.Errorf("the sessions are %q, %v; want two", sessions, err)
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
	// Deletions are told at once, for each of them.
	gone := handles[n/2]
	if err := direct.Delete(nodeOf(t, direct, "/holdfast", gone.Key()), -1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-gone.Lost():
	case <-time.After(2 * time.Second):
		t.Error("the loss of a lock that was deleted is not told")
	}
	if err := l.Close(); err != nil { // the sessions end, with all that they have
		t.Error(err)
	}
	until(t, "the end of the sessions", func() bool { return monitor(t, server.Addr(), "zk_ephemerals_count") == 0 })
	server.Kill()
	server.Start() // it reads the record
}

// Tries and waits that fail leave neither watches nor goroutines behind.
func TestFailedTries(t *testing.T) {
	tries, waits := 10_000, 1_000
	if raceEnabled {
		tries, waits = 1_000, 200
	}
	server := testserver.ZooKeeper(t)
	a, b := lockerOn(t, zklock.Config{}, server.Addr()), lockerOn(t, zklock.Config{}, server.Addr())
	h := acquire(t, a, "held")
	_, err := b.TryAcquire(t.Context(), "held")
	matches(t, "TryAcquire", err, lock.ErrHeld)
	time.Sleep(ttl / 2) // the holder's node is watched
	goroutines, watches, heap := runtime.NumGoroutine(), monitor(t, server.Addr(), "zk_watch_count"), heapInUse()
	each(tries, func(int) {
		if _, err := b.TryAcquire(t.Context(), "held"); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("TryAcquire: %v, want ErrHeld", err)
		}
	})
	for range waits {
		if _, err := b.Acquire(t.Context(), "held", lock.Wait(2*time.Millisecond)); err == nil {
			t.Fatal("got a lock that is held")
		}
	}
	direct := dial(t, server.Addr())
	until(t, "the end of all waits", func() bool { return len(inLine(t, direct, "held")) == 1 })
	until(t, "as many goroutines as before", func() bool { return runtime.NumGoroutine() <= goroutines+6 })
	if more := monitor(t, server.Addr(), "zk_watch_count") - watches; more > 2 {
		t.Errorf("%d more watches than before", more)
	}
	if more := heapInUse() - heap; !raceEnabled && more > 4<<20 { // a client to look with has its buffers
		t.Errorf("%d bytes more of heap than before", more)
	}
	release(t, h)
	release(t, acquire(t, b, "held"))
	until(t, "no watches", func() bool { return monitor(t, server.Addr(), "zk_watch_count") == 0 })
}

// Twenty thousand keys are used once each. Their nodes are containers, which the server
// removes when they have been empty for a while.
func TestUsedKeys(t *testing.T) {
	n := 20_000
	if raceEnabled {
		n = 2_000
	}
	server := testserver.ZooKeeper(t, testserver.Args("-Dznode.container.checkIntervalMs=20000", "-Dznode.container.maxPerMinute=1000000"))
	l := lockerOn(t, zklock.Config{}, server.Addr())
	direct := dial(t, server.Addr())
	var failed atomic.Int64
	began := time.Now()
	each(n, func(i int) {
		h, err := l.TryAcquire(t.Context(), fmt.Sprint("user-", i))
		if err == nil {
			err = h.Release(t.Context())
		}
		if err != nil && failed.Add(1) < 5 {
			t.Error(err)
		}
	})
	_, stat, err := direct.Exists("/holdfast/lock")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d keys used in %v, %d nodes are there", n, time.Since(began), stat.NumChildren)
	// Nobody lists them: a lock among them is as quick as any, and known to all.
	other := lockerOn(t, zklock.Config{}, server.Addr())
	h := acquire(t, l, "user-7")
	if _, err := other.TryAcquire(t.Context(), "user-7"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("another: %v, want ErrHeld", err)
	}
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		_, stat, err = direct.Exists("/holdfast/lock")
		if err != nil {
			t.Fatal(err)
		}
		if stat.NumChildren == 1 { // that of the one that is held
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d nodes are left", stat.NumChildren)
		}
	}
	if err := h.Err(); err != nil {
		t.Error(err)
	}
	release(t, h)
}
