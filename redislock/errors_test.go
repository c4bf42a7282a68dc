package redislock_test

import (
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/redislock"
)

// What the server refuses is neither busy nor unknown: the error has its text, a
// wait goes on where the refusal may pass, and nothing is sent to clean up.
func TestRefusals(t *testing.T) {
	tests := []struct {
		reply  string
		remedy string // of a refusal that will not pass
	}{
		{"LOADING Redis is loading the dataset in memory", ""},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", ""},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", ""},
		{"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", ""},
		{"CLUSTERDOWN The cluster is down", ""},
		{"TRYAGAIN Multiple keys request during rehashing of slot", ""},
		{"OOM command not allowed when used memory > 'maxmemory'. script: x, on @user_script:40.", ""},
		{"READONLY You can't write against a read only replica.", ""},
		{"NOREPLICAS Not enough good replicas to write.", ""},
		{"ERR Error running script (call to f_x): @user_script:1: -READONLY You can't write against a read only replica.", ""},
		{"ERR max number of clients reached", ""},
		{"ERR something new", ""},
		{"NOAUTH Authentication required.", "password"},
		{"WRONGPASS invalid username-password pair or user is disabled.", "password"},
		{"NOPERM User app has no permissions to run the 'evalsha' command", "comment of package redislock"},
		{"ERR ACL failure in script: User app has no permissions to run the 'time' command", "comment of package redislock"},
		{"MOVED 3999 127.0.0.1:6381", "redis.ClusterClient"},
		{"ASK 3999 127.0.0.1:6381", "redis.ClusterClient"},
		{"ERR unknown command 'EVALSHA', with args beginning with: 's3cret' ", "scripts"},
	}
	for _, test := range tests {
		name, _, _ := strings.Cut(test.reply, ", with")
		t.Run(name, func(t *testing.T) {
			f := newFake(t, func([]string) string { return "-" + test.reply + "\r\n" })
			l := lockerOn(t, dial(t, f.addr), redislock.Config{Config: lock.Config{TTL: ttl}})

			_, err := l.TryAcquire(t.Context(), "k")
			if err == nil || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("TryAcquire: %v, want an error with the server's text", err)
			}
			if test.remedy == "" {
				matches(t, "TryAcquire", err, lock.ErrUnavailable)
			} else if errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), test.remedy) {
				t.Errorf("TryAcquire: %v, want the remedy %q", err, test.remedy)
			}
			if got := f.commands(); got != "evalsha" {
				t.Errorf("commands %q, want one evalsha", got)
			}

			wait := 300 * time.Millisecond
			if test.remedy != "" {
				wait = time.Minute
			}
			began := time.Now()
			_, err = l.Acquire(t.Context(), "k", lock.Wait(wait))
			if took := time.Since(began); (took >= wait) != (test.remedy == "") {
				t.Errorf("Acquire came back after %v: %v", took, err)
			}
			if _, err := l.Inspect(t.Context(), "k"); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("Inspect: %v, want an error with the server's text", err)
			}
		})
	}
}

// When the outcome is not known, the request is abandoned.
func TestUnknownOutcomeIsAbandoned(t *testing.T) {
	gone := make(chan string, 100)
	f := newFake(t, func(command []string) string {
		if len(command) > 8 && strings.Contains(command[7], ":void:") { // release.lua with a tombstone
			gone <- command[8]
			return ":0\r\n"
		}
		return ""
	})
	l := lockerOn(t, dial(t, f.addr), redislock.Config{Config: lock.Config{TTL: ttl}})
	_, err := l.TryAcquire(t.Context(), "k")
	matches(t, "TryAcquire", err, lock.ErrUnavailable, io.EOF)
	select {
	case <-gone:
	case <-time.After(10 * time.Second):
		t.Error("nothing was abandoned")
	}
}

func TestServerThatIsDown(t *testing.T) {
	s := testserver.Redis(t)
	s.Kill()
	c := dial(t, s.Addr())
	l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: 6 * time.Second}})
	_, err := l.TryAcquire(t.Context(), "k")
	matches(t, "TryAcquire", err, lock.ErrUnavailable)
	if op := new(net.OpError); !errors.As(err, &op) || op.Op != "dial" {
		t.Errorf("TryAcquire: %v, want the error of the connection", err)
	}
	began := time.Now()
	_, err = l.Acquire(t.Context(), "k", lock.Wait(500*time.Millisecond))
	matches(t, "Acquire", err, lock.ErrUnavailable)
	if took := time.Since(began); took < 500*time.Millisecond || took > 10*time.Second {
		t.Errorf("Acquire came back after %v, want 500ms", took)
	}
	s.Start()
	// What was never sent needs no cleaning up, which would be tried once a second.
	time.Sleep(1500 * time.Millisecond)
	if names := do(t, c, "keys", "*:void:*").([]any); len(names) != 0 {
		t.Errorf("tombstones %v of requests that were never sent", names)
	}
	h, err := l.Acquire(t.Context(), "k", lock.Wait(20*time.Second))
	if err != nil {
		t.Fatalf("after the start: %v", err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}

func TestClientThatIsClosed(t *testing.T) {
	c := dial(t, testserver.Redis(t).Addr())
	l := lockerOn(t, c, redislock.Config{})
	c.Close()
	_, err := l.Acquire(t.Context(), "k", lock.Wait(time.Minute))
	matches(t, "Acquire", err, redis.ErrClosed)
	if !strings.Contains(err.Error(), "given to redislock.New, and must stay open") {
		t.Errorf("Acquire: %v, want the remedy", err)
	}
}

// calls returns how often the server has run a command since CONFIG RESETSTAT.
func calls(t *testing.T, c *redis.Client, command string) int {
	t.Helper()
	info, err := c.Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(info, "cmdstat_"+command+":calls=")
	if !ok {
		return 0
	}
	number, _, _ := strings.Cut(rest, ",")
	n, err := strconv.Atoi(number)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// documentedRights is a command that makes a user with what the package comment asks for.
func documentedRights() []any {
	return []any{
		"acl", "setuser", "app", "on", ">secret", "~holdfast:*", "&holdfast:wake:*",
		"+eval", "+evalsha", "+get", "+mget", "+set", "+del", "+exists", "+pexpire", "+pttl", "+time", "+ping",
		"+zadd", "+zrem", "+zrange", "+zrangebyscore", "+zscore", "+zcount", "+publish", "+subscribe",
	}
}

// A user with what the package comment asks for can do everything, and one with
// less is told so.
func TestAccessControl(t *testing.T) {
	s := testserver.Redis(t)
	admin := dial(t, s.Addr())
	do(t, admin, documentedRights()...)
	l, err := lock.Open(t.Context(), "redis://app:secret@"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Inspect(t.Context(), "k"); err != nil {
		t.Errorf("Inspect: %v", err)
	}
	other, err := open(t, "redis://app:secret@"+s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	waiting := wait(t, other, "k")
	eventually(t, "the waiter has asked again", func() bool { return calls(t, admin, "zadd") >= 2 })
	letGo(t, h)
	letGo(t, granted(t, "a waiter", waiting))

	d := driveOn(t, dial(t, s.Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "secret" }))
	g := acquire(t, d, ask("k"))
	if errs := d.Renew(t.Context(), []driver.Lease{g.Lease()}); errs[0] != nil {
		t.Errorf("Renew: %v", errs[0])
	}
	if err := d.Abandon(t.Context(), ask("k")); err != nil {
		t.Errorf("Abandon: %v", err)
	}
	for _, less := range []string{"-time", "-mget -get", "resetkeys", "-evalsha"} {
		for rule := range strings.FieldsSeq(less) {
			do(t, admin, "acl", "setuser", "app", rule)
		}
		// Denied is not gone.
		if errs := d.Renew(t.Context(), []driver.Lease{g.Lease()}); errors.Is(errs[0], lock.ErrLost) {
			t.Errorf("%s: Renew: %v", less, errs[0])
		}
		if err := g.Release(t.Context()); less != "-time" && (err == nil || errors.Is(err, lock.ErrLost)) {
			t.Errorf("%s: Release: %v, want that it is denied", less, err)
		}
		_, err := l.Acquire(t.Context(), "k", lock.Wait(time.Minute))
		if err == nil || !strings.Contains(err.Error(), "comment of package redislock") {
			t.Errorf("%s: Acquire: %v, want the remedy", less, err)
		}
		if less == "-time" {
			do(t, admin, "acl", "setuser", "app", "+time")
			g = acquire(t, d, ask("k"))
		}
	}
}
