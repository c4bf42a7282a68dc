package etcdlock_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/internal/throughproxy"
	"github.com/holdfast-go/holdfast/lock"
)

const (
	suiteTTL = 3 * time.Second
	holdfast = "/holdfast/" // the prefix if none is given
)

// TestConformance runs the suite on Lockers that were opened by URL, each with a network of
// its own.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		return newSuite(t, byURL).harness()
	})
}

// TestConformanceOnClient does so with clients of the application's own, with their defaults.
func TestConformanceOnClient(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		return newSuite(t, byClient).harness()
	})
}

// suite is a server, and a proxy for each Locker.
type suite struct {
	*throughproxy.Lockers
	view
	server *testserver.Server
}

// view is what a test sees of the locks under a prefix, past the Lockers.
type view struct {
	direct *clientv3.Client
	prefix string
}

func newSuite(t *testing.T, open func(*testing.T, string, lock.Config) (lock.Locker, error)) *suite {
	server := testserver.Etcd(t, testserver.Durable())
	return &suite{
		Lockers: &throughproxy.Lockers{Addr: server.Addr, Open: open, TTL: suiteTTL},
		view:    view{dial(t, server.Addr()), holdfast},
		server:  server,
	}
}

func byURL(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	return byURLUnder(t, holdfast, addr, cfg)
}

func byURLUnder(t *testing.T, prefix, addr string, cfg lock.Config) (lock.Locker, error) {
	if _, err := cfg.WithDefaults(); err != nil || cfg.Observe != nil || cfg.TTL <= 0 {
		return byClientUnder(t, prefix, addr, cfg) // what a URL cannot say
	}
	return lock.Open(t.Context(), fmt.Sprintf("etcd://%s%s?ttl=%v&token_base=%d&owner=%s", addr, prefix, cfg.TTL, cfg.TokenBase, url.QueryEscape(cfg.Owner)))
}

func byClient(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	return byClientUnder(t, "", addr, cfg)
}

func byClientUnder(t *testing.T, prefix, addr string, cfg lock.Config) (lock.Locker, error) {
	c, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(addr, ","), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return etcdlock.New(c, etcdlock.Config{Config: cfg, Prefix: prefix})
}

func (s *suite) harness() *conformance.Harness {
	h := s.Harness()
	h.Promises = lock.Fencing | lock.FIFO | lock.SharedMode | lock.Leased
	h.Revoke = s.revoke
	h.Restart = func(*testing.T) {
		s.server.Kill()
		s.server.Start()
	}
	h.Left = s.left
	return h
}

// revoke deletes the lock as an operator would, who finds it by its key.
func (v view) revoke(t *testing.T, key string) {
	t.Helper()
	resp, err := v.direct.Delete(t.Context(), v.prefix+"{"+key+"}/", clientv3.WithPrefix())
	if err != nil || resp.Deleted != 1 {
		t.Fatalf("the lock on %q is not where the documentation says: %d deleted, %v", key, resp.Deleted, err)
	}
}

func (v view) left(t *testing.T, key string) time.Duration {
	t.Helper()
	resp, err := v.direct.Get(t.Context(), v.prefix+"{"+key+"}/", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Kvs) == 0 {
		return 0
	}
	lease, err := v.direct.TimeToLive(t.Context(), clientv3.LeaseID(resp.Kvs[0].Lease))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(min(lease.TTL+1, lease.GrantedTTL)) * time.Second // it tells whole seconds that are left
}
