package redislock_test

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/otherprocess"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/redislock"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	otherprocess.Serve()
	goleak.VerifyTestMain(m)
}

// quiet drops what go-redis says of servers that the tests have taken away.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// ttl is long enough that no lease ends in a test that does not want it to.
const ttl = time.Minute

// dial returns a client that the test closes.
func dial(t *testing.T, addr string, change ...func(*redis.Options)) *redis.Client {
	t.Helper()
	o := &redis.Options{Addr: addr, MaxRetries: -1, DialerRetries: 1}
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	t.Cleanup(func() { c.Close() })
	return c
}

// drive returns a driver on a server of the test's own, and a client to look at the server.
func drive(t *testing.T, opts ...testserver.Option) (driver.Driver, *redis.Client) {
	t.Helper()
	c := dial(t, testserver.Redis(t, opts...).Addr())
	return driveOn(t, c), c
}

func driveOn(t *testing.T, c redis.UniversalClient) driver.Driver {
	t.Helper()
	d, err := redislock.NewDriver(c, redislock.Config{Config: lock.Config{TTL: ttl}})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// lockerOn returns a Locker on a client, which the test closes.
func lockerOn(t *testing.T, c redis.UniversalClient, cfg redislock.Config) lock.Locker {
	t.Helper()
	l, err := redislock.New(c, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// ask returns a new request for key.
func ask(key string) *driver.Request {
	var id [16]byte
	_, _ = rand.Read(id[:])
	return &driver.Request{Key: key, ID: hex.EncodeToString(id[:]), Owner: "owner", TTL: ttl}
}

func acquire(t *testing.T, d driver.Driver, r *driver.Request) driver.Grant {
	t.Helper()
	g, err := d.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("Acquire(%q): %v", r.Key, err)
	}
	return g
}

func release(t *testing.T, g driver.Grant) {
	t.Helper()
	if err := g.Release(t.Context()); err != nil {
		t.Fatalf("Release: %v", err)
	}
}

func token(g driver.Grant) lock.Token {
	n, _ := g.Token()
	return n
}

// do sends a command to the server behind the driver's back.
func do(t *testing.T, c *redis.Client, args ...any) any {
	t.Helper()
	v, err := c.Do(t.Context(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatalf("%v: %v", args, err)
	}
	return v
}

func matches(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want an error that matches %q", what, err, w)
		}
	}
}

// eventually waits for what the server, or another goroutine, is about to do.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came true: %s", what)
		}
	}
}
