package redislock_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
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
	locker, err := lock.Open(ctx, os.Getenv("LOCK_URL")) // redis://:password@localhost:6379/0?ttl=10s
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
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	locker, err := redislock.New(client, redislock.Config{Prefix: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	defer locker.Close()
	if err := lock.Do(context.Background(), locker, "nightly-report", report); err != nil {
		log.Print(err)
	}
}
