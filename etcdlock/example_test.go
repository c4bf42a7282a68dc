package etcdlock_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/lock"
)

// report does the nightly report, with the token in each of its writes.
func report(ctx context.Context, h lock.Handle) error {
	token, _ := h.Token()
	fmt.Println("reporting with token", token)
	return ctx.Err()
}

// A program that is told by a URL where to lock: importing the package is enough.
func Example_open() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, os.Getenv("LOCK_URL")) // etcd://user:password@host1:2379,host2:2379/locks?ttl=10s
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := lock.Do(ctx, locker, "nightly-report", report); err != nil {
		log.Print(err)
	}
}

// A program that has a client already.
func ExampleNew() {
	client, err := clientv3.New(clientv3.Config{
		Endpoints:         []string{"localhost:2379"},
		DialTimeout:       5 * time.Second,
		DialKeepAliveTime: 10 * time.Second,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	locker, err := etcdlock.New(client, etcdlock.Config{Prefix: "/billing/locks/"})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := lock.Do(context.Background(), locker, "nightly-report", report); err != nil {
		log.Print(err)
	}
}
