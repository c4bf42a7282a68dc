package torture_test

import (
	"context"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/conformance/torture"
	_ "github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

func etcdServer(t *testing.T) *torture.Harness {
	server := testserver.Etcd(t, testserver.Durable())
	network := torture.NewNetwork(t, server.Addr())
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{server.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	faults := slices.Concat(torture.ProcessFaults(), network.Faults())
	faults = append(faults, torture.Deletion(func(key string) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_, _ = admin.Delete(ctx, "/holdfast/{"+key+"}/", clientv3.WithPrefix())
	}))
	if server.CanFault() {
		faults = append(faults, torture.ServerFaults(server, 0)...)
	}
	return &torture.Harness{
		Name:   "etcd",
		TTL:    2 * time.Second,
		URL:    func(worker int) string { return "etcd://" + network.Addr(worker) + "/" },
		Direct: func() (lock.Locker, error) { return lock.Open(context.Background(), "etcd://"+server.Addr()+"/") },
		Faults: faults,
		// Leases are looked at twice a second, and after a restart the server gives them
		// their whole time again.
		Takeover: time.Second,
	}
}
