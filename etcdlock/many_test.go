package etcdlock_test

import (
	"flag"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

var (
	many    = flag.Int("many", 10_000, "how many locks TestManyLocks holds")
	forTTLs = flag.Int("ttls", 2, "for how many TTLs")
)

// Many locks are held on one lease: none is lost, and they cost neither a goroutine nor a
// request each.
func TestManyLocks(t *testing.T) {
	n := *many
	if raceEnabled {
		n = min(n, 1_000)
	}
	const ttl, crowd = 10 * time.Second, 64
	s := testserver.Etcd(t)
	l := lockerOn(t, dial(t, s.Addr()), etcdlock.Config{Config: lock.Config{TTL: ttl}})
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
	t.Logf("%d locks acquired in %v", n, time.Since(began))
	time.Sleep(2 * time.Second) // by then they are watched
	bytes := (heapInUse() - heap) / n
	before := requests(t, s)
	time.Sleep(time.Duration(*forTTLs) * ttl)
	made := requests(t, s) - before
	if more := runtime.NumGoroutine() - goroutines; more > 250 { // of which most watch the first few locks
		t.Errorf("%d more goroutines than before, want some", more)
	} else {
		t.Logf("%d locks held for %d TTLs: %d requests, %d bytes of heap a lock, %d more goroutines", n, *forTTLs, made, bytes, more)
	}
	if bytes > 1024 && !raceEnabled {
		t.Errorf("%d bytes of heap a lock, want at most a KiB", bytes)
	}
	if made > 10*(*forTTLs) {
		t.Errorf("%d requests for %d TTLs: the lease is renewed, and not each lock", made, *forTTLs)
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
}

func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
