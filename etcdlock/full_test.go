package etcdlock_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

// A server whose space is used up says so, and not that the lock is taken: it may even have
// carried out the request that filled it. What is held is kept and can be released, and nothing
// is left of what was asked for.
func TestFullServer(t *testing.T) {
	s := testserver.Etcd(t, testserver.Args("--quota-backend-bytes", fmt.Sprint(256<<10)))
	direct := dial(t, s.Addr())
	l := openURL(t, "etcd://"+s.Addr()+"?ttl=3s")
	h := must(t)(l.TryAcquire(t.Context(), "held"))
	for i := 0; ; i++ {
		_, err := direct.Put(t.Context(), fmt.Sprint("fill-", i), strings.Repeat("x", 64<<10))
		if errors.Is(err, rpctypes.ErrNoSpace) {
			break
		}
		if err != nil || i > 100 {
			t.Fatal(i, err)
		}
	}
	for _, wait := range []time.Duration{0, time.Second} {
		_, err := l.Acquire(t.Context(), "wanted", lock.Wait(wait))
		if !errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), "database space exceeded") {
			t.Errorf("Acquire at a server that is full: %v, want the reason", err)
		}
	}
	time.Sleep(4 * time.Second)
	if err := h.Err(); err != nil {
		t.Errorf("the lock that is held: %v", err)
	}
	until(t, func() bool { return len(names(t, direct, "/holdfast/{wanted}/")) == 0 })
	release(t, h)
	nothingLeft(t, direct, "held")

	if _, err := direct.Delete(t.Context(), "fill-", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	status, err := direct.Status(t.Context(), s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Compact(t.Context(), status.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Defragment(t.Context(), s.Addr()); err != nil {
		t.Fatal(err)
	}
	if _, err := direct.AlarmDisarm(t.Context(), &clientv3.AlarmMember{}); err != nil {
		t.Fatal(err)
	}
	release(t, must(t)(l.Acquire(t.Context(), "wanted", lock.Wait(10*time.Second))))
}
