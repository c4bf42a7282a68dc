package pglock_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/pglock"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		testserver.RemoveClusters()
		os.Exit(code)
	}))
}

// urlOf returns the URL of a server's database.
func urlOf(s *testserver.Server, query string) string {
	return "postgres://" + testserver.PostgresUser + "@" + s.Addr() + "/postgres?sslmode=disable&" + query
}

// open returns a Locker that the test closes.
func open(t *testing.T, rawURL string) (lock.Locker, error) {
	t.Helper()
	l, err := lock.Open(t.Context(), rawURL)
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

func mustOpen(t *testing.T, s *testserver.Server, query string) lock.Locker {
	t.Helper()
	l, err := open(t, urlOf(s, query))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// dial returns a connection to look at the server with.
func dial(t testing.TB, s *testserver.Server) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	c, err := pgx.Connect(ctx, urlOf(s, "application_name=test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(context.Background()) })
	return c
}

func exec(t testing.TB, c *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := c.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// value returns the only value of the only row.
func value[T any](t testing.TB, c *pgx.Conn, sql string, args ...any) (v T) {
	t.Helper()
	if err := c.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// lockRows is how many advisory locks the server has.
func lockRows(t testing.TB, c *pgx.Conn) int {
	t.Helper()
	return value[int](t, c, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
}

// holderOf returns the process ID of the server's backend that holds key, or 0.
func holderOf(t testing.TB, c *pgx.Conn, key string) int {
	t.Helper()
	return value[int](t, c, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1 "+
		"AND classid::bigint << 32 | objid::bigint = $1", pglock.Number(key))
}

func matches(t *testing.T, what string, err error, want ...error) {
	t.Helper()
	for _, w := range want {
		if !errors.Is(err, w) {
			t.Errorf("%s: %v, want an error that matches %q", what, err, w)
		}
	}
}

// until waits for what the server, or another goroutine, is about to do.
func until(t *testing.T, come func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !come(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it has not come")
		}
	}
}

// lockerDialing returns a Locker whose connections are dial's. The test closes it.
func lockerDialing(t *testing.T, rawURL string, c pglock.Config, dial pgconn.DialFunc) lock.Locker {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.DialFunc = dial
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l, err := pglock.New(pool, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}
