package pglock_test

import (
	"context"
	"fmt"
	"net"
	osexec "os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/pglock"
)

// next takes the lock, checks that its token is greater than the last, and lets go.
func next(t *testing.T, l lock.Locker, last lock.Token, after string) lock.Token {
	t.Helper()
	h := acquire(t, l, "token", 30*time.Second)
	token, ok := h.Token()
	if !ok || token <= last {
		t.Errorf("after %s: token %d (%d in its epoch %d), and the last was %d (%d, %d)", after,
			token, token&(1<<31-1), token>>31, last, last&(1<<31-1), last>>31)
	}
	release(t, h)
	return max(token, last)
}

// several takes the lock so often that the sequence's numbers are not all in the log.
func several(t *testing.T, l lock.Locker, last lock.Token, after string) lock.Token {
	t.Helper()
	for range 100 {
		last = next(t, l, last, after)
	}
	return last
}

// Tokens grow over every way in which a server can end.
func TestTokensGrowOverCrashes(t *testing.T) {
	s := testserver.Postgres(t, testserver.Durable())
	l := mustOpen(t, s, "ttl=5s")
	last := several(t, l, 0, "the start")
	for _, crash := range []struct {
		name string
		do   func()
	}{
		{"the release", func() {}},
		{"kill -9 of all", func() { s.Kill(); s.Start() }},
		{"pg_ctl -m immediate", func() { s.Abort(); s.Start() }},
		{"a clean stop", func() { s.Stop(); s.Start() }},
		{"kill -9 of a backend, which has all others started again", func() {
			c := dial(t, s)
			killBackend(t, value[int](t, c, "SELECT pg_backend_pid()"))
			until(t, func() bool { return c.Ping(context.Background()) != nil })
		}},
		{"kill -9 in the middle of a checkpoint", func() {
			c := dial(t, s)
			exec(t, c, "CHECKPOINT")
			s.Kill()
			s.Start()
		}},
		{"the end of the holder's session", func() {
			h := acquire(t, l, "token", 10*time.Second)
			c := dial(t, s)
			exec(t, c, "SELECT pg_terminate_backend($1)", holderOf(t, c, "token"))
			<-h.Lost()
			last = max(last, tokenOf(h))
		}},
	} {
		crash.do()
		last = several(t, l, last, crash.name)
	}
}

func killBackend(t *testing.T, pid int) {
	t.Helper()
	if out, err := osexec.Command("kill", "-9", fmt.Sprint(pid)).CombinedOutput(); err != nil {
		t.Fatalf("kill: %v: %s", err, out)
	}
}

// Tokens grow although the database is what a backup has kept.
func TestTokensGrowOverRestore(t *testing.T) {
	s := testserver.Postgres(t, testserver.Durable())
	l := mustOpen(t, s, "ttl=5s")
	last := several(t, l, 0, "the start")
	s.Stop()
	cold := testserver.CopyData(t, s)
	s.Start() // what follows is all of one run of the server
	last = several(t, l, last, "the copy")
	dump := func(args ...string) string {
		host, port, _ := strings.Cut(s.Addr(), ":")
		out, err := osexec.Command(testserver.PostgresProgram(t, "pg_dump"), append(args, "-h", host, "-p", port, "-U", testserver.PostgresUser, "postgres")...).Output()
		if err != nil {
			t.Fatalf("pg_dump: %v", err)
		}
		return string(out)
	}
	whole, data := dump("--clean", "--if-exists"), dump("--data-only")
	last = several(t, l, last, "the backups")
	// A backup knows nothing of later epochs: only the clock, in seconds, says that they
	// have been.
	aSecond := func(last lock.Token) {
		until(t, func() bool { return time.Now().Unix() > int64(last>>31) })
	}
	restore := func(sql string) {
		host, port, _ := strings.Cut(s.Addr(), ":")
		cmd := osexec.Command(testserver.PostgresProgram(t, "psql"), "-q", "-X", "-v", "ON_ERROR_STOP=1", "-h", host, "-p", port, "-U", testserver.PostgresUser, "postgres")
		cmd.Stdin = strings.NewReader(sql)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("psql: %v: %s", err, out)
		}
	}
	for _, backup := range []struct{ name, sql string }{
		{"a restore of the data alone", "TRUNCATE holdfast.epoch, holdfast.incarnation;" + data},
		{"a restore of all", whole},
	} {
		l.Close()
		aSecond(last)
		restore(backup.sql)
		l = mustOpen(t, s, "ttl=5s")
		last = several(t, l, last, backup.name)
	}
	l.Close()
	s.Stop()
	aSecond(last)
	old := testserver.Postgres(t, testserver.Durable(), testserver.OnData(cold))
	several(t, mustOpen(t, old, "ttl=5s"), last, "the return to a copy of the files of a server that was stopped")
}

// A standby is refused, and gives greater tokens once it is promoted.
func TestTokensGrowOverPromotion(t *testing.T) {
	primary := testserver.Postgres(t, testserver.Durable(), testserver.Args("-c", "wal_level=replica"))
	l := mustOpen(t, primary, "ttl=5s")
	last := several(t, l, 0, "the start")
	standby := testserver.Postgres(t, testserver.Durable(), testserver.OnData(testserver.Standby(t, primary)))
	_, err := open(t, urlOf(standby, ""))
	matches(t, "a standby", err, lock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "standby") {
		t.Errorf("%v, want an error that names the standby", err)
	}
	last = several(t, l, last, "the copy")
	primary.Kill()
	c := dial(t, standby)
	exec(t, c, "SELECT pg_promote()")
	until(t, func() bool { return !value[bool](t, c, "SELECT pg_is_in_recovery()") })
	promoted := mustOpen(t, standby, "ttl=5s")
	several(t, promoted, last, "the promotion")
}

// At the end of an epoch's numbers those who hold and those who wait go on, with the next.
func TestTokensGrowOverEpochs(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	const lockers, epochs = 4, 3
	var mu sync.Mutex
	var last lock.Token
	seen := make(map[lock.Token]bool)
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range lockers {
		l := mustOpen(t, s, "")
		all.Go(func() {
			var opts []lock.Option
			if i == 0 {
				opts = append(opts, lock.Shared())
			}
			for ctx.Err() == nil {
				h, err := l.Acquire(ctx, "token", opts...)
				if err != nil {
					continue
				}
				mu.Lock()
				if tokenOf(h) <= last {
					t.Errorf("token %d after %d", tokenOf(h), last)
				}
				last = tokenOf(h)
				seen[last>>31] = true
				mu.Unlock()
				if err := h.Release(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range epochs {
		mu.Lock()
		before := last >> 31
		mu.Unlock()
		exec(t, admin, "SELECT setval('holdfast.token', base + 2147483648 - 50) FROM holdfast.incarnation")
		until(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return last>>31 > before
		})
	}
	stop()
	all.Wait()
	if len(seen) != epochs+1 {
		t.Errorf("tokens of %d epochs, want %d", len(seen), epochs+1)
	}
	until(t, func() bool { return lockRows(t, admin) == 0 })
}

// Sessions that have read an epoch do not go on with it when another has been taken.
func TestTokensGrowWhenTheEpochIsTakenAway(t *testing.T) {
	s := testserver.Postgres(t)
	old := mustOpen(t, s, "")
	last := several(t, old, 0, "the start")
	exec(t, dial(t, s), "DELETE FROM holdfast.incarnation")
	last = several(t, mustOpen(t, s, ""), last, "the next epoch")
	several(t, old, last, "the next epoch, in an old session")
}

// No lock waits for the disk: the log is not flushed as often as locks are taken.
func TestTokensNeedNoFlush(t *testing.T) {
	s := testserver.Postgres(t, testserver.Durable(), testserver.Args("-c", "wal_writer_delay=10s")) // which flushes by itself
	admin := dial(t, s)
	if v := value[int](t, admin, "SELECT current_setting('server_version_num')::int"); v < 150000 || v >= 180000 {
		t.Skipf("version %d does not count flushes where this test looks", v)
	}
	l := mustOpen(t, s, "")
	release(t, tryAcquire(t, l, "warm-up"))
	syncs := func() int {
		exec(t, admin, "SELECT pg_stat_force_next_flush()")
		return value[int](t, admin, "SELECT wal_sync FROM pg_stat_wal")
	}
	before := syncs()
	const n = 1000
	for range n {
		release(t, tryAcquire(t, l, "token"))
	}
	time.Sleep(1100 * time.Millisecond) // a backend reports at the end of a statement, once a second
	release(t, tryAcquire(t, l, "token"))
	more := syncs() - before
	t.Logf("%d locks flushed the log %d times", n, more)
	if more > n/100 { // the sequence itself would have it flushed every 32 numbers
		t.Errorf("%d locks flushed the log %d times", n, more)
	}
}

// What tokens need is made by whoever comes first, or by an administrator; and who may do
// neither is told.
func TestSchema(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "CREATE ROLE app LOGIN; REVOKE CREATE ON SCHEMA public FROM public")
	u := "postgres://app@" + s.Addr() + "/postgres?sslmode=disable"
	_, err := open(t, u)
	if err == nil || !strings.Contains(err.Error(), "42501") || !strings.Contains(err.Error(), "pglock.Schema") {
		t.Errorf("a role that may create nothing: %v, want the remedy", err)
	}
	if l, err := open(t, u+"&token=off"); err != nil {
		t.Errorf("without tokens: %v", err)
	} else {
		h := tryAcquire(t, l, "k")
		if token, ok := h.Token(); ok || token != 0 {
			t.Errorf("without tokens: token %d", token)
		}
		if l.Features() != lock.SharedMode {
			t.Errorf("without tokens: %v", l.Features())
		}
		release(t, h)
	}
	if n := value[int](t, admin, "SELECT count(*) FROM pg_class WHERE relname IN ('epoch', 'incarnation', 'token')"); n != 0 {
		t.Error("without tokens, something was created")
	}

	for _, name := range []string{"holdfast", `My "locks"`} {
		text := pglock.Schema(name)
		exec(t, admin, text)
		exec(t, admin, text) // changes nothing
		for line := range strings.Lines(text) {
			if grant, ok := strings.CutPrefix(line, "-- GRANT"); ok {
				exec(t, admin, "GRANT"+grant)
			}
		}
		l, err := open(t, u+"&schema="+strings.ReplaceAll(strings.ReplaceAll(name, `"`, "%22"), " ", "%20"))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		next(t, l, next(t, l, 0, "the start"), "the release")
	}

	exec(t, admin, "CREATE DATABASE fresh")
	var all sync.WaitGroup
	for range 8 { // at once
		all.Go(func() {
			l, err := open(t, "postgres://"+testserver.PostgresUser+"@"+s.Addr()+"/fresh?sslmode=disable")
			if err != nil {
				t.Error(err)
				return
			}
			next(t, l, 0, "the start")
		})
	}
	all.Wait()
}

// What tokens need is made whatever a role is set to, and with the server's own functions.
func TestSchemaAmongHostileSettings(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "ALTER ROLE "+testserver.PostgresUser+" SET default_transaction_isolation = 'serializable'")
	for i := range 4 {
		database := fmt.Sprint("fresh", i)
		exec(t, admin, "CREATE DATABASE "+database)
		fresh := "postgres://" + testserver.PostgresUser + "@" + s.Addr() + "/" + database + "?sslmode=disable"
		c, err := pgx.Connect(t.Context(), fresh)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close(context.Background())
		exec(t, c, "CREATE FUNCTION public.nextval(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'; "+
			"CREATE FUNCTION public.setval(text, bigint) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'") // nearer to what is asked for
		var all sync.WaitGroup
		for range 20 { // at once
			all.Go(func() {
				l, err := open(t, fresh)
				if err != nil {
					t.Error(err)
					return
				}
				next(t, l, 0, "the start")
				l.Close()
			})
		}
		all.Wait()
		if base := value[int64](t, c, "SELECT base FROM holdfast.incarnation"); base < 1<<31 {
			t.Errorf("the epoch's numbers begin at %d, within those of the last", base)
		}
	}
}

// What a role may not do is told when the program starts, and not when an epoch is over; and
// what the error says mends it.
func TestMissingGrants(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	next(t, mustOpen(t, s, ""), 0, "the start") // an epoch is in force
	exec(t, admin, `CREATE ROLE "the App" LOGIN`)
	exec(t, admin, `GRANT USAGE ON SCHEMA holdfast TO "the App"`)
	u := "postgres://the%20App@" + s.Addr() + "/postgres?sslmode=disable"
	_, err := open(t, u)
	if err == nil {
		t.Fatal("a role without rights opened a Locker")
	}
	_, text, _ := strings.Cut(err.Error(), "(")
	text, _, _ = strings.Cut(text, ")")
	all := strings.Split(text, "; ")
	if len(all) != 3 {
		t.Fatalf("%v, want it to name three grants", err)
	}
	exec(t, admin, text)
	last := several(t, mustOpen(t, s, ""), 0, "the grants")
	for _, grant := range all {
		privileges, object, _ := strings.Cut(strings.TrimPrefix(grant, "GRANT "), " ON ")
		for privilege := range strings.SplitSeq(privileges, ", ") {
			one := privilege + " ON " + object
			exec(t, admin, "REVOKE "+strings.Replace(one, " TO ", " FROM ", 1))
			if _, err := open(t, u); err == nil || !strings.Contains(err.Error(), "(GRANT "+one+")") {
				t.Errorf("%v, want GRANT %s", err, one)
			}
			exec(t, admin, "GRANT "+one)
		}
	}
	exec(t, admin, "DELETE FROM holdfast.incarnation")
	l, err := open(t, u)
	if err != nil {
		t.Fatal(err)
	}
	several(t, l, last, "the next epoch, which that role takes")
}

// A session whose epoch is over looks for the next at the server that connections reach
// now. If that is another one, after a failover, the session and its locks are of the past.
func TestEpochsOfAnotherServer(t *testing.T) {
	was, is := testserver.Postgres(t), testserver.Postgres(t)
	var now atomic.Pointer[testserver.Server]
	now.Store(was)
	l := lockerDialing(t, urlOf(was, ""), pglock.Config{}, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, now.Load().Addr())
	})
	held := tryAcquire(t, l, "held")
	next(t, mustOpen(t, is, ""), 0, "the start of the other") // which has an epoch of its own
	now.Store(is)
	exec(t, dial(t, was), "SELECT setval('holdfast.token', base + 2147483648) FROM holdfast.incarnation")
	h := acquire(t, l, "k", 20*time.Second)
	if holderOf(t, dial(t, is), "k") == 0 {
		t.Error("the lock is not at the server that connections reach")
	}
	select {
	case <-held.Lost():
	case <-time.After(5 * time.Second):
		t.Error("what is held at the other server is not lost")
	}
	matches(t, "Err", held.Err(), lock.ErrLost)
	release(t, h)
}
