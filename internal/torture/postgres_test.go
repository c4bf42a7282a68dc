package torture_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	_ "github.com/holdfast-go/holdfast/pglock"
)

func postgresServer(t *testing.T) *torture.Harness {
	server := testserver.Postgres(t, testserver.Durable())
	network := torture.NewNetwork(t, server.Addr())
	url := func(addr string) string {
		return "postgres://" + testserver.PostgresUser + "@" + addr + "/postgres?sslmode=disable"
	}
	faults := slices.Concat(torture.ProcessFaults(), network.Faults())
	if server.CanFault() {
		faults = append(faults, torture.ServerFaults(server, 0)...)
	}
	return &torture.Harness{
		Name:   "PostgreSQL",
		TTL:    2 * time.Second,
		URL:    func(worker int) string { return url(network.Addr(worker)) },
		Direct: func() (lock.Locker, error) { return lock.Open(context.Background(), url(server.Addr())) },
		Faults: faults,
	}
}
