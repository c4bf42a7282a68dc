package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/pglock"
)

// sessions is how many connections Lockers have at the server.
func sessions(t testing.TB, c *pgx.Conn) int {
	t.Helper()
	return value[int](t, c, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdfast %'")
}

func tryAcquire(t *testing.T, l lock.Locker, key string, opts ...lock.Option) lock.Handle {
	t.Helper()
	h, err := l.TryAcquire(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return h
}

func acquire(t *testing.T, l lock.Locker, key string, wait time.Duration) lock.Handle {
	t.Helper()
	h, err := l.Acquire(t.Context(), key, lock.Wait(wait))
	if err != nil {
		t.Fatalf("Acquire(%q): %v", key, err)
	}
	return h
}

func release(t *testing.T, h lock.Handle) {
	t.Helper()
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("Release(%q): %v", h.Key(), err)
	}
}

func tokenOf(h lock.Handle) lock.Token {
	token, _ := h.Token()
	return token
}

// proxied returns a Locker with a network of its own.
func proxied(t *testing.T, s *testserver.Server, query string) (lock.Locker, *conformance.Proxy) {
	t.Helper()
	p, err := conformance.NewProxy(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	l, err := open(t, "postgres://"+testserver.PostgresUser+"@"+p.Addr()+"/postgres?sslmode=disable&"+query)
	if err != nil {
		t.Fatal(err)
	}
	return l, p
}

// P1: a pooler that gives each transaction another backend is refused by name, and in
// session mode all is well.
func TestTransactionPoolingIsRefused(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	for _, mode := range []string{"transaction", "statement"} {
		for i, settings := range [][]string{
			{"default_pool_size = 1"},
			{"default_pool_size = 2"},
			{"default_pool_size = 2", "server_round_robin = 1"},
			{"default_pool_size = 4"},
			{"default_pool_size = 4", "server_round_robin = 1"},
		} {
			pooler := testserver.PgBouncer(t, s, mode, settings...)
			ctx, stop := context.WithCancel(t.Context())
			var load sync.WaitGroup
			for range 1 + i%3 { // others use the pool meanwhile
				load.Go(func() {
					c, err := pgx.Connect(ctx, urlOf(pooler, "default_query_exec_mode=simple_protocol"))
					if err != nil {
						return
					}
					defer c.Close(context.Background())
					for ctx.Err() == nil {
						_, _ = c.Exec(ctx, "SELECT pg_sleep(0.001)")
					}
				})
			}
			for range 20 {
				_, err := open(t, urlOf(pooler, ""))
				if err == nil || !strings.Contains(err.Error(), "transaction pooling") {
					t.Errorf("%s mode, %v: %v, want an error that names transaction pooling", mode, settings, err)
				}
			}
			stop()
			load.Wait()
			if n := lockRows(t, admin); n != 0 {
				t.Errorf("%s mode: %d locks are left", mode, n)
			}
			c, err := pgx.Connect(t.Context(), urlOf(pooler, "default_query_exec_mode=simple_protocol"))
			if err != nil {
				t.Fatal(err)
			}
			if got := value[string](t, c, "SELECT current_setting('lock_timeout') || current_setting('idle_session_timeout')"); got != "00" {
				t.Errorf("%s mode: settings are left in the pool: %s", mode, got)
			}
			_ = c.Close(t.Context())
		}
	}
}

func TestSessionPoolingWorks(t *testing.T) {
	s := testserver.Postgres(t)
	pooler := testserver.PgBouncer(t, s, "session", "default_pool_size = 20", "server_reset_query =")
	admin := dial(t, s)
	a, b := mustOpen(t, pooler, "ttl=3s"), mustOpen(t, pooler, "ttl=3s")
	h := tryAcquire(t, a, "p1")
	_, err := b.TryAcquire(t.Context(), "p1")
	matches(t, "a held key", err, lock.ErrHeld)
	got := make(chan lock.Handle, 1)
	go func() {
		h, err := b.Acquire(context.Background(), "p1")
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	time.Sleep(4 * time.Second) // more than a TTL
	if err := h.Err(); err != nil {
		t.Errorf("held for more than a TTL: %v", err)
	}
	release(t, h)
	next := <-got
	if tokenOf(next) <= tokenOf(h) {
		t.Errorf("token %d after %d", tokenOf(next), tokenOf(h))
	}
	exec(t, admin, "SELECT pg_terminate_backend($1)", holderOf(t, admin, "p1"))
	select {
	case <-next.Lost():
	case <-time.After(3 * time.Second):
		t.Error("the backend was terminated behind the pooler, and Lost is open")
	}
	h = acquire(t, a, "p1", 5*time.Second)
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	_ = h
	// The pool resets nothing here: what goes back to it must be clean.
	if n := lockRows(t, admin); n != 0 {
		t.Errorf("%d locks are left in the pool", n)
	}
	for range 3 {
		c, err := pgx.Connect(t.Context(), urlOf(pooler, "default_query_exec_mode=simple_protocol"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		if got := value[string](t, c, "SELECT current_setting('lock_timeout') || current_setting('idle_session_timeout')"); got != "00" {
			t.Errorf("settings are left in the pool: %s", got)
		}
	}
}

// A statement that reaches another backend than the session's does nothing there, and says so.
func TestStatementsLookAtTheirBackend(t *testing.T) {
	c := dial(t, testserver.Postgres(t))
	pid := value[int64](t, c, "SELECT pg_backend_pid()")
	for _, mine := range []bool{true, false} {
		if !mine {
			pid++
		}
		for name, text := range pglock.Statements(pid, "7::bigint", false) {
			if strings.Contains(name, "inspect") || strings.Contains(name, "terminate") || strings.Contains(name, "beat") {
				continue
			}
			exec(t, c, "PREPARE "+name+" "+text)
			args := "(1, 2)"
			if strings.HasPrefix(text, "(bigint) ") {
				args = "(1)"
			}
			got := value[*int64](t, c, "EXECUTE "+name+args)
			if (got != nil) != mine {
				t.Errorf("%s: at the session's backend: %v; the answer is null: %v", name, mine, got == nil)
			}
			held := lockRows(t, c)
			if !mine && held != 0 {
				t.Errorf("%s has taken a lock at another backend", name)
			}
			exec(t, c, "SELECT pg_advisory_unlock_all()")
			exec(t, c, "DEALLOCATE "+name)
		}
	}
}

// P2: acquisitions that are given up while the answers are held up leave nothing.
func TestGivenUpWhileAnswersAreHeldUp(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	a, p := proxied(t, s, "")
	b := mustOpen(t, s, "")
	release(t, tryAcquire(t, a, "warm-up"))
	before := sessions(t, admin)
	p.StallReplies()
	var all sync.WaitGroup
	for i := range 30 {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			_, err := a.Acquire(ctx, fmt.Sprint("p2-", i))
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Acquire: %v, want DeadlineExceeded", err)
			}
		})
	}
	all.Wait()
	if n := lockRows(t, admin); n != 30 {
		t.Errorf("%d locks while the answers are held up, want that all 30 were granted", n)
	}
	p.Heal()
	until(t, func() bool { return lockRows(t, admin) == 0 })
	for i := range 30 {
		release(t, tryAcquire(t, b, fmt.Sprint("p2-", i)))
	}
	if n := sessions(t, admin); n != before {
		t.Errorf("%d connections, and %d before", n, before)
	}
}

// P2: a wait that ends at the moment of the grant ends with a handle or with nothing.
func TestCancelGrantRaces(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	a, b, c := mustOpen(t, s, ""), mustOpen(t, s, ""), mustOpen(t, s, "")
	won := 0
	for range 300 {
		h := acquire(t, a, "race", 10*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan lock.Handle, 1)
		go func() {
			h, _ := b.Acquire(ctx, "race")
			got <- h
		}()
		time.Sleep(rand.N(2 * time.Millisecond))
		go func() {
			time.Sleep(rand.N(time.Millisecond))
			cancel()
		}()
		release(t, h)
		if h := <-got; h != nil {
			won++
			release(t, h)
		}
		cancel()
		h = acquire(t, c, "race", 10*time.Second)
		release(t, h)
	}
	t.Logf("%d of 300 waits were granted", won)
	until(t, func() bool { return lockRows(t, admin) == 0 })
	if n := sessions(t, admin); n > 3+3*8 {
		t.Errorf("%d connections", n)
	}
}

// P5: what closes connections of pools, and sessions of roles, leaves locks alone.
func TestHostileRole(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "CREATE ROLE hostile LOGIN; GRANT CREATE ON DATABASE postgres TO hostile")
	for _, setting := range []string{
		"statement_timeout = '50ms'", "lock_timeout = '20ms'", "idle_in_transaction_session_timeout = '50ms'",
		"idle_session_timeout = '500ms'", "default_transaction_isolation = 'serializable'", "default_transaction_read_only = on",
		"synchronous_commit = off", "search_path = ''", "client_min_messages = debug1", "DateStyle = 'German'", "TimeZone = 'Asia/Kathmandu'",
		"bytea_output = 'escape'", "extra_float_digits = -15",
	} {
		exec(t, admin, "ALTER ROLE hostile SET "+setting)
	}
	u := "postgres://hostile@" + s.Addr() + "/postgres?sslmode=disable&ttl=3s&" +
		"pool_max_conn_lifetime=1s&pool_max_conn_idle_time=500ms&pool_health_check_period=200ms&pool_max_conns=1"
	a, err := open(t, u)
	if err != nil {
		t.Fatal(err)
	}
	b, err := open(t, u)
	if err != nil {
		t.Fatal(err)
	}
	slow, over := dial(t, s), make(chan struct{})
	exec(t, slow, "BEGIN; LOCK TABLE holdfast.incarnation")
	time.AfterFunc(400*time.Millisecond, func() {
		defer close(over)
		_, _ = slow.Exec(context.Background(), "COMMIT")
	})
	late, err := open(t, u)
	<-over
	if err != nil {
		t.Fatalf("opened while the server is slow: %v", err)
	}
	release(t, tryAcquire(t, late, "p6"))
	h := tryAcquire(t, a, "p6")
	began := time.Now()
	_, err = b.Acquire(t.Context(), "p6", lock.Wait(2*time.Second))
	matches(t, "a wait that ended", err, lock.ErrHeld)
	if took := time.Since(began); errors.Is(err, lock.ErrUnavailable) || took < 1800*time.Millisecond {
		t.Errorf("a wait of 2s ended after %v with: %v", took, err)
	}
	time.AfterFunc(2*time.Second, func() { _ = h.Release(context.Background()) })
	next := acquire(t, b, "p6", 10*time.Second)
	if took := time.Since(began); took < 3900*time.Millisecond {
		t.Errorf("the lock was let go after %v", took)
	}
	time.Sleep(4 * time.Second)
	if err := next.Err(); err != nil {
		t.Errorf("held for more than a TTL: %v", err)
	}
	release(t, next)
	until(t, func() bool { return lockRows(t, admin) == 0 })
}

// P6: a release whose answer is late leaves nothing, and a wait of any length is no error.
func TestSlowReleaseAndLongWait(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	l, p := proxied(t, s, "")
	h, err := l.Acquire(t.Context(), "p6", lock.Wait(25*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	p.Delay(0, 1500*time.Millisecond)
	release(t, h)
	if n := lockRows(t, admin); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// P7: no two keys of many share a number, and what is a key for one is one for all.
func TestNumbers(t *testing.T) {
	const n = 200_000
	seen := make(map[int64]string, n)
	for i := range n {
		key := fmt.Sprint("order-", i)
		number := pglock.Number(key)
		if other, ok := seen[number]; ok {
			t.Fatalf("%q and %q have the number %d", key, other, number)
		}
		seen[number] = key
	}
	// The mapping must never change: another version of this package would let a second holder in.
	for key, want := range map[string]int64{
		"nightly-report": 1121791274938711508, "a\x00b": 8962806489304706701, "\xff\xfe": 1563279421957668379,
	} {
		if got := pglock.Number(key); got != want {
			t.Errorf("the number of %q is %d, and was %d", key, got, want)
		}
	}
}

// P7: two keys with one number do not exclude each other silently.
func TestCollision(t *testing.T) {
	s := testserver.Postgres(t)
	d, err := pglock.NewDriver(urlOf(s, ""), pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	request := func(id string) *driver.Request {
		return &driver.Request{Key: "one", ID: id, Mode: lock.ModeShared, Busy: func() {}}
	}
	g, err := d.Acquire(t.Context(), request("a"))
	if err != nil {
		t.Fatal(err)
	}
	pglock.Rename(d, "one", "another")
	_, err = d.Acquire(t.Context(), request("b"))
	if err == nil || !driver.IsPermanent(err) || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), `"another"`) {
		t.Errorf("%v, want an error that names the key with the same number", err)
	}
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// P8: the application's pool is neither used up by locks nor in their way.
func TestPoolOfThree(t *testing.T) {
	s := testserver.Postgres(t)
	pool, err := pgxpool.New(t.Context(), urlOf(s, "pool_max_conns=3"))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l, err := pglock.New(pool, pglock.Config{Config: lock.Config{TTL: 3 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var taken []*pgxpool.Conn
	for range 3 { // the application has them all
		c, err := pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, c)
	}
	k1 := tryAcquire(t, l, "k1")
	handles := []lock.Handle{tryAcquire(t, l, "k2"), tryAcquire(t, l, "k3"), acquire(t, l, "k4", 2*time.Second)}
	began := time.Now()
	_, err = l.Acquire(t.Context(), "k1", lock.Wait(time.Second))
	matches(t, "a held key", err, lock.ErrHeld)
	if took := time.Since(began); took > 3*time.Second {
		t.Errorf("a wait of 1s took %v", took)
	}
	time.Sleep(4 * time.Second) // more than a TTL
	for _, h := range append(handles, k1) {
		if err := h.Err(); err != nil {
			t.Errorf("%q: %v", h.Key(), err)
		}
		release(t, h)
	}
	for _, c := range taken {
		if n := value[int](t, c.Conn(), "SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory'"); n != 0 {
			t.Errorf("%d locks are on a connection of the pool", n)
		}
		c.Release()
	}
}

// P8: a crowd that waits needs few connections, and all are served.
func TestCrowdNeedsFewConnections(t *testing.T) {
	s := testserver.Postgres(t, testserver.Args("-c", "max_connections=20"))
	admin := dial(t, s)
	l := mustOpen(t, s, "")
	ctx, stop := context.WithCancel(t.Context())
	most := make(chan int, 1)
	go func() {
		n := 0
		for ctx.Err() == nil {
			n = max(n, sessions(t, admin))
			time.Sleep(50 * time.Millisecond)
		}
		most <- n
	}()
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			h, err := l.Acquire(t.Context(), fmt.Sprint("crowd-", i%20), lock.Wait(30*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			time.Sleep(5 * time.Millisecond)
			if err := h.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	stop()
	if n := <-most; n > 9 {
		t.Errorf("%d connections, want at most 9", n)
	}
}

// sessionsOf is how many connections all clients have.
func sessionsOf(t testing.TB, c *pgx.Conn) int {
	t.Helper()
	return value[int](t, c, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
}

// P8: a server that is full says so, and is used as soon as it is not.
func TestServerFull(t *testing.T) {
	s := testserver.Postgres(t, testserver.Args("-c", "max_connections=6", "-c", "superuser_reserved_connections=0", "-c", "max_wal_senders=0"))
	admin := dial(t, s)
	exec(t, admin, "CREATE ROLE app LOGIN; GRANT CREATE ON DATABASE postgres TO app")
	u := "postgres://app@" + s.Addr() + "/postgres?sslmode=disable"
	pool, err := pgxpool.New(t.Context(), u)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l, err := pglock.New(pool, pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var others []*pgx.Conn
	full := func() bool {
		c, err := pgx.Connect(t.Context(), u)
		if err == nil {
			others = append(others, c)
		}
		return err != nil
	}
	// One that has just left may still be counted.
	until(t, func() bool { return full() && sessionsOf(t, admin) == len(others)+1 })
	defer func() {
		for _, c := range others {
			_ = c.Close(context.Background())
		}
	}()
	_, err = l.TryAcquire(t.Context(), "p8")
	matches(t, "a server that is full", err, lock.ErrUnavailable)
	if errors.Is(err, lock.ErrHeld) || err == nil || !strings.Contains(err.Error(), "53300") {
		t.Errorf("%v, want what the server says", err)
	}
	for _, c := range others {
		_ = c.Close(t.Context())
	}
	release(t, acquire(t, l, "p8", 10*time.Second))
}

// A holder that builds an index does not wait for those who wait for its lock.
func TestCreateIndexConcurrentlyAmongWaiters(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "CREATE TABLE big AS SELECT i FROM generate_series(1, 1000) i")
	h := tryAcquire(t, mustOpen(t, s, ""), "migration")
	ctx, stop := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range 3 {
		l := mustOpen(t, s, "")
		waiting.Go(func() { _, _ = l.Acquire(ctx, "migration") })
	}
	until(t, func() bool { return value[int](t, admin, "SELECT count(*) FROM pg_locks WHERE NOT granted") == 3 })
	began := time.Now()
	bounded, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := admin.Exec(bounded, "CREATE INDEX CONCURRENTLY ON big (i)"); err != nil {
		t.Fatalf("CREATE INDEX CONCURRENTLY beside three waiters, after %v: %v", time.Since(began), err)
	}
	t.Logf("CREATE INDEX CONCURRENTLY beside three waiters took %v", time.Since(began))
	stop()
	waiting.Wait()
	release(t, h)
}

// Readers that come and go do not keep a writer out, however much longer than a slice each
// of them holds the lock; nor do writers readers.
func TestReadersAndWritersTakeTurns(t *testing.T) {
	s := testserver.Postgres(t)
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	var all sync.WaitGroup
	var mu sync.Mutex
	got := map[lock.Mode]int{}
	enough := func() bool { return got[lock.ModeShared] >= 8 && got[lock.ModeExclusive] >= 8 }
	for i := range 6 {
		l := mustOpen(t, s, "")
		mode, hold, opts := lock.ModeExclusive, 50*time.Millisecond, []lock.Option{}
		if i%2 == 0 {
			mode, hold, opts = lock.ModeShared, 700*time.Millisecond, []lock.Option{lock.Shared()}
		}
		for range 2 {
			all.Go(func() {
				for ctx.Err() == nil {
					h, err := l.Acquire(ctx, "k", opts...)
					if err != nil {
						return
					}
					time.Sleep(hold)
					_ = h.Release(context.Background())
					mu.Lock()
					if got[mode]++; enough() {
						stop()
					}
					mu.Unlock()
				}
			})
		}
	}
	all.Wait()
	t.Logf("readers got it %d times, writers %d times", got[lock.ModeShared], got[lock.ModeExclusive])
	if !enough() {
		t.Error("want that each kind gets it 8 times")
	}
}

// A wait of any length leaves no line in the server's log, for a reader or a writer; and it
// works for a role that may make no temporary functions, too.
func TestWaitIsQuiet(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	for _, allowed := range []bool{true, false} {
		if !allowed {
			exec(t, admin, "CREATE ROLE app LOGIN; REVOKE TEMP ON DATABASE postgres FROM public")
		}
		h := tryAcquire(t, mustOpen(t, s, ""), "k")
		opts := [][]lock.Option{{}, {lock.Shared()}, {lock.Shared()}}
		got := make(chan error, len(opts))
		for _, o := range opts {
			l, err := open(t, "postgres://app@"+s.Addr()+"/postgres?sslmode=disable&token=off")
			if allowed {
				l, err = mustOpen(t, s, ""), nil
			}
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				h, err := l.Acquire(context.Background(), "k", o...)
				if err == nil {
					err = h.Release(context.Background())
				}
				got <- err
			}()
		}
		time.Sleep(2 * time.Second)
		release(t, h)
		for range opts {
			if err := <-got; err != nil {
				t.Error(err)
			}
		}
		if n := lockRows(t, admin); n != 0 {
			t.Errorf("%d locks are left", n)
		}
		log := s.Log()
		if n := strings.Count(log, "ERROR") + strings.Count(log, "WARNING"); (n != 0) == allowed {
			t.Errorf("temporary functions allowed: %v: %d lines in the log:\n%s", allowed, n, log)
		}
	}
}

// Only a lock that the server surely has is shared with others of the same Locker: they do
// not ask the server for it, and whoever did may have been refused.
func TestNobodyJoinsWhatWasRefused(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "CREATE ROLE app LOGIN")
	l, err := open(t, "postgres://app@"+s.Addr()+"/postgres?sslmode=disable&token=off")
	if err != nil {
		t.Fatal(err)
	}
	exec(t, admin, "REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock_shared(bigint) FROM public")
	var granted atomic.Int32
	for range 100 {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				if h, err := l.TryAcquire(context.Background(), "k", lock.Shared()); err == nil {
					granted.Add(1)
					_ = h.Release(context.Background())
				}
			})
		}
		all.Wait()
	}
	if n := granted.Load(); n > 0 {
		t.Errorf("%d locks of which the server has none", n)
	}
	if n := lockRows(t, admin); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

// A lock that an attempt has taken, and could not free again in time, is not forgotten.
func TestWhatCouldNotBeFreedIsAbandoned(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	d, err := pglock.NewDriver(urlOf(s, ""), pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	request := func(id string) *driver.Request { return &driver.Request{Key: "k", ID: id, Busy: func() {}} }
	g, err := d.Acquire(t.Context(), request("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, "BEGIN; ALTER SEQUENCE holdfast.token CACHE 1") // the lock is granted, and there is no token
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := d.Acquire(ctx, request("b"))
		failed <- err
	}()
	until(t, func() bool { return holderOf(t, admin, "k") != 0 })
	leave := pglock.HoldTurn(d)
	err = <-failed
	leave()
	exec(t, admin, "ROLLBACK")
	if driver.LeavesNothing(err) {
		t.Errorf("%v is marked as one that leaves nothing", err)
	}
	if err := d.Abandon(t.Context(), request("b")); err != nil {
		t.Error(err)
	}
	if holderOf(t, admin, "k") != 0 {
		t.Error("the lock is left")
	}
}

// Readers who come at once do not take each other for writers.
func TestReadersDoNotFindEachOther(t *testing.T) {
	s := testserver.Postgres(t)
	var all sync.WaitGroup
	for range 4 {
		l := mustOpen(t, s, "")
		all.Go(func() {
			for range 2000 {
				h, err := l.TryAcquire(t.Context(), "k", lock.Shared())
				if err != nil {
					t.Errorf("nobody holds it alone, nor waits: %v", err)
					return
				}
				if err := h.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A wait may be granted at the very moment at which its slice ends; then what it was
// granted is not left on the session: neither the flag to a reader, nor the lock a second
// time to a writer who gets no token for it.
func TestGrantAtTheEndOfASlice(t *testing.T) {
	s := testserver.Postgres(t)
	admin, other := dial(t, s), dial(t, s)
	exec(t, admin, "CREATE ROLE loud LOGIN; GRANT CREATE ON DATABASE postgres TO loud; REVOKE TEMPORARY ON DATABASE postgres FROM public")
	for _, test := range []struct {
		name, user string
		taken      int64
		shared     string
		option     []lock.Option
	}{
		{"a reader, by an error", "loud", pglock.Flag("k"), "_shared", []lock.Option{lock.Shared()}},
		{"a reader", testserver.PostgresUser, pglock.Flag("k"), "_shared", []lock.Option{lock.Shared()}},
		{"a writer, by an error", "loud", pglock.Number("k"), "", nil},
		{"a writer", testserver.PostgresUser, pglock.Number("k"), "", nil},
	} {
		l, err := open(t, "postgres://"+test.user+"@"+s.Addr()+"/postgres?sslmode=disable&ttl=10m&schema="+test.user)
		if err != nil {
			t.Fatal(err)
		}
		exec(t, admin, "SELECT pg_advisory_lock"+test.shared+"($1)", test.taken)
		got := make(chan lock.Handle, 1)
		go func() {
			h, err := l.Acquire(context.Background(), "k", append(test.option, lock.Wait(30*time.Second))...)
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
			got <- h
		}()
		waiter := 0
		until(t, func() bool {
			waiter = value[int](t, admin, "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
			return waiter != 0
		})
		signal := func(which syscall.Signal) {
			if err := syscall.Kill(waiter, which); err != nil {
				t.Fatal(err)
			}
		}
		signal(syscall.SIGSTOP)
		if test.option == nil { // whoever is granted the lock gets no token
			exec(t, other, "BEGIN; ALTER SEQUENCE "+test.user+".token CACHE 1")
		}
		time.Sleep(600 * time.Millisecond) // more than a slice
		exec(t, admin, "SELECT pg_advisory_unlock"+test.shared+"($1)", test.taken)
		signal(syscall.SIGCONT)
		if test.option == nil {
			time.Sleep(700 * time.Millisecond)
			exec(t, other, "ROLLBACK")
		}
		if h := <-got; h != nil {
			release(t, h)
		}
		until(t, func() bool {
			return value[int](t, admin, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0
		})
		l.Close()
	}
}
