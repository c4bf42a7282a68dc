//go:build unix

package redislock_test

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

// A hundred thousand locks are renewed in batches for three TTLs: none is lost, and they
// cost neither a goroutine nor a command each.
func TestManyLocks(t *testing.T) {
	n := 100_000
	if raceEnabled {
		n = 5_000
	}
	const ttl, crowd = 15 * time.Second, 64
	s := testserver.Redis(t)
	c, admin := dial(t, s.Addr()), dial(t, s.Addr())
	l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: ttl}})
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
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
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
	t.Logf("%d locks acquired in %v, %d bytes of heap each", n, time.Since(began), (heapInUse()-heap)/n)
	if bytes := (heapInUse() - heap) / n; !raceEnabled && bytes > 1024 {
		t.Errorf("%d bytes of heap a lock, want at most a KiB", bytes)
	}
	do(t, admin, "config", "resetstat")
	mine, theirs := cpu(t), serverCPU(t, admin)
	time.Sleep(3 * ttl)
	mine, theirs = cpu(t)-mine, serverCPU(t, admin)-theirs
	commands := calls(t, admin, "evalsha")
	if more := runtime.NumGoroutine() - goroutines; more > 20 {
		t.Errorf("%d more goroutines than before, want a few", more)
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
	// A lock is renewed about every third of its TTL: each renewal in a batch of its
	// own would be nine commands a lock.
	if commands > n/2 {
		t.Errorf("%d commands renewed %d locks for 3 TTLs: they are not in batches", commands, n)
	}
	t.Logf("%d locks held for 3 TTLs of %v: %d commands (%.0f a second); CPU of this process %v (%.1f%%), of the server %v (%.1f%%)",
		n, ttl, commands, float64(commands)/(3*ttl).Seconds(),
		mine.Round(time.Millisecond), 100*mine.Seconds()/(3*ttl).Seconds(),
		theirs.Round(time.Millisecond), 100*theirs.Seconds()/(3*ttl).Seconds())
	each(func(i int) {
		if err := handles[i].Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// cpu returns what this process has used of the processors.
func cpu(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func serverCPU(t *testing.T, admin *redis.Client) time.Duration {
	t.Helper()
	info, err := admin.InfoMap(t.Context(), "cpu").Result()
	if err != nil {
		t.Fatal(err)
	}
	var user, system float64
	_, _ = fmt.Sscan(info["CPU"]["used_cpu_user"], &user)
	_, _ = fmt.Sscan(info["CPU"]["used_cpu_sys"], &system)
	return time.Duration((user + system) * float64(time.Second))
}
