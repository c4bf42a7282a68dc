package torture_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	_ "github.com/holdfast-go/holdfast/zklock"
)

func zookeeperAdmin(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	c, events, err := zk.Connect([]string{addr}, 2*time.Second, zk.WithLogger(mute{}), zk.WithLogInfo(false))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		for range events {
		}
	})
	return c
}

func zookeeperServer(t *testing.T) *torture.Harness {
	server := testserver.ZooKeeper(t, testserver.Durable())
	network := torture.NewNetwork(t, server.Addr())
	admin := zookeeperAdmin(t, server.Addr())
	faults := slices.Concat(torture.ProcessFaults(), network.Faults())
	faults = append(faults, torture.Deletion(func(key string) {
		dir := "/holdfast/lock/" + key
		names, _, _ := admin.Children(dir)
		for _, name := range names {
			_ = admin.Delete(dir+"/"+name, -1)
		}
	}))
	if server.CanFault() {
		faults = append(faults, torture.ServerFaults(server, 0)...)
	}
	return &torture.Harness{
		Name:   "ZooKeeper",
		TTL:    2 * time.Second,
		URL:    func(worker int) string { return "zk://" + network.Addr(worker) + "/" },
		Direct: func() (lock.Locker, error) { return lock.Open(context.Background(), "zk://"+server.Addr()+"/?ttl=2s") },
		Faults: faults,
		// A quarter of the timeout and half a tick are taken off: see zklock.
		Term: 1400 * time.Millisecond,
		// Sessions are counted in ticks of the server.
		Takeover: time.Second,
	}
}
