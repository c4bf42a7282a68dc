package etcdlock_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// A client of the application's own lives on when watches have ended in an outage, and when the
// Locker is closed: neither may leave it with streams that nobody uses.
func TestOutagesLeaveNoStreams(t *testing.T) {
	const ttl = 2 * time.Second
	proxy := newProxy(t, testserver.Etcd(t, testserver.Durable()).Addr())
	l := lockerOn(t, dial(t, proxy.Addr()), etcdlock.Config{Config: lock.Config{TTL: ttl}})
	none := watchStreams()
	outages := []struct {
		name  string
		begin func()
	}{
		{"no byte passes", proxy.Stall},
		{"there are no connections", proxy.Down},
		{"no byte passes, again", proxy.Stall},
	}
	for _, o := range outages {
		h := must(t)(l.Acquire(t.Context(), "watched", lock.Wait(20*time.Second)))
		until(t, func() bool { return watchStreams() == none+1 })
		o.begin()
		<-h.Lost()
		time.Sleep(2 * ttl) // the watches are begun anew, in vain
		t.Logf("%s: %d streams", o.name, watchStreams()-none)
		proxy.Heal()
	}
	h := must(t)(l.Acquire(t.Context(), "watched", lock.Wait(20*time.Second)))
	until(t, func() bool { return watchStreams() == none+1 })
	release(t, h)
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	until(t, func() bool { return watchStreams() == none })
}

// watchStreams returns how many streams of watches all clients of this process have.
func watchStreams() int {
	stacks := make([]byte, 16<<20)
	return strings.Count(string(stacks[:runtime.Stack(stacks, true)]), "(*watchGRPCStream).run(")
}
