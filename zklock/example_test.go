package zklock_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// nightly does the nightly report, with the token in each of its writes.
func nightly(ctx context.Context, h lock.Handle) error {
	token, _ := h.Token()
	fmt.Println("reporting with token", token)
	return ctx.Err()
}

// A program that is told by a URL where to lock: importing the package is enough.
func Example_open() {
	ctx := context.Background()
	locker, err := lock.Open(ctx, os.Getenv("LOCK_URL")) // zk://zk1:2181,zk2:2181,zk3:2181/locks?ttl=15s&tick=2s
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := lock.Do(ctx, locker, "nightly-report", nightly); err != nil {
		log.Print(err)
	}
}

// Over TLS, with a certificate of the program's own.
func ExampleNew() {
	var certificate tls.Certificate // from tls.LoadX509KeyPair
	dialer := &tls.Dialer{Config: &tls.Config{Certificates: []tls.Certificate{certificate}}}
	locker, err := zklock.New([]string{"zk1:2281", "zk2:2281", "zk3:2281"}, zklock.Config{
		Root: "/billing/locks",
		Tick: 2 * time.Second,
		Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, network, addr)
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := lock.Do(context.Background(), locker, "nightly-report", nightly); err != nil {
		log.Print(err)
	}
}
