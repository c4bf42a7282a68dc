package etcdlock_test

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial returns a client that the test closes.
func dial(t testing.TB, addr string, change ...func(*clientv3.Config)) *clientv3.Client {
	t.Helper()
	cfg := clientv3.Config{Endpoints: []string{addr}, Logger: zap.NewNop()}
	for _, f := range change {
		f(&cfg)
	}
	c, err := clientv3.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// lockerOn returns a Locker on a client, which the test closes.
func lockerOn(t testing.TB, c *clientv3.Client, cfg etcdlock.Config) lock.Locker {
	t.Helper()
	l, err := etcdlock.New(c, cfg)
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
	return &driver.Request{Key: key, ID: hex.EncodeToString(id[:]), Owner: "owner", TTL: time.Minute, Busy: func() {}}
}

// names returns the keys at the server that begin so.
func names(t testing.TB, c *clientv3.Client, prefix string) []string {
	t.Helper()
	resp, err := c.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, kv := range resp.Kvs {
		all = append(all, string(kv.Key))
	}
	return all
}

func matches(t testing.TB, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want an error that matches %q", what, err, w)
		}
	}
}

// until waits for what the server, or another goroutine, is about to do.
func until(t testing.TB, come func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !come(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it has not come")
		}
	}
}
