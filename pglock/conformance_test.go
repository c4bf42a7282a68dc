package pglock_test

import (
	"context"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/internal/throughproxy"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/pglock"
)

// suiteTTL leaves, of its margins, more than a busy machine takes to run a timer.
const suiteTTL = 3 * time.Second

// TestConformance gives each Locker a network of its own, with faults.
func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		return newSuite(t, byURL).harness()
	})
}

// TestConformanceOnPool does so with Lockers that have the configuration of a pool of the
// application's own, and no tokens, and so nothing in the database.
func TestConformanceOnPool(t *testing.T) {
	conformance.Run(t, func(t *testing.T) *conformance.Harness {
		t.Parallel()
		h := newSuite(t, byPool).harness()
		h.Promises = lock.SharedMode
		return h
	})
}

// suite is a server, and a proxy for each Locker.
type suite struct {
	*throughproxy.Lockers
	server *testserver.Server
}

func newSuite(t *testing.T, open func(*testing.T, string, lock.Config) (lock.Locker, error)) *suite {
	server := testserver.Postgres(t)
	return &suite{
		Lockers: &throughproxy.Lockers{Addr: server.Addr, Open: open, TTL: suiteTTL},
		server:  server,
	}
}

func byURL(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	q := url.Values{"sslmode": {"disable"}}
	if _, err := cfg.WithDefaults(); err != nil || cfg.Observe != nil || cfg.TTL <= 0 { // what a URL cannot say
		u := &url.URL{Scheme: "postgres", User: url.User(testserver.PostgresUser), Host: addr, Path: "/postgres"}
		u.RawQuery = q.Encode()
		return pglock.Open(t.Context(), u, cfg)
	}
	q.Set("ttl", cfg.TTL.String())
	q.Set("token_base", strconv.FormatUint(uint64(cfg.TokenBase), 10))
	q.Set("owner", cfg.Owner)
	return lock.Open(t.Context(), "postgres://"+testserver.PostgresUser+"@"+addr+"/postgres?"+q.Encode())
}

func byPool(t *testing.T, addr string, cfg lock.Config) (lock.Locker, error) {
	pool, err := pgxpool.New(t.Context(), "postgres://"+testserver.PostgresUser+"@"+addr+"/postgres?sslmode=disable&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pglock.New(pool, pglock.Config{Config: cfg, NoTokens: true})
}

func (s *suite) harness() *conformance.Harness {
	h := s.Harness()
	h.Promises = lock.Fencing | lock.SharedMode
	h.Revoke = s.revoke
	h.Restart = func(*testing.T) {
		s.server.Kill()
		s.server.Start()
	}
	h.Skip["Left"] = "no view shows the idle_session_timeout of another session: see TestServerFreesAfterTTL"
	return h
}

// revoke ends the backend that holds the lock, as an operator would who finds it by its
// key: there is no other way to take a lock away.
func (s *suite) revoke(t *testing.T, key string) {
	t.Helper()
	c := dial(t, s.server)
	defer c.Close(context.Background())
	pid := holderOf(t, c, key)
	if pid == 0 {
		t.Fatalf("the lock on %q is not where the documentation says", key)
	}
	exec(t, c, "SELECT pg_terminate_backend($1)", pid)
	until(t, func() bool { return value[int](t, c, "SELECT count(*) FROM pg_stat_activity WHERE pid = $1", pid) == 0 })
}
