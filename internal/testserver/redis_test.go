package testserver_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestRedisAnswers(t *testing.T) {
	s := testserver.Redis(t)
	if got := ask(t, s.Addr(), "PING"); got != "PONG" {
		t.Errorf("PING: %q, want PONG", got)
	}
}

func TestPauseAndResume(t *testing.T) {
	s := testserver.Redis(t)
	s.Pause()
	s.Pause() // changes nothing
	if got, err := request(s.Addr(), 100*time.Millisecond, "PING"); !os.IsTimeout(err) {
		t.Errorf("PING while paused: %q, %v, want a timeout", got, err)
	}
	s.Resume()
	if got := ask(t, s.Addr(), "PING"); got != "PONG" {
		t.Errorf("PING after Resume: %q, want PONG", got)
	}

	// No request that comes after Pause is answered, however fast it comes.
	for range 50 {
		c := dial(t, s.Addr())
		s.Pause()
		if got, err := c.request(2*time.Millisecond, "PING"); err == nil {
			t.Fatalf("PING just after Pause: %q, want no answer", got)
		}
		s.Resume()
	}
}

func TestDurableKeepsItsDataOverKill(t *testing.T) {
	s := testserver.Redis(t, testserver.Durable())
	addr := s.Addr()
	ask(t, addr, "SET", "key", "value")
	for _, paused := range []bool{false, true} {
		if paused {
			s.Pause()
		}
		s.Kill()
		if _, err := request(addr, time.Second, "PING"); err == nil {
			t.Error("PING after Kill was answered")
		}
		s.Start()
		if got := s.Addr(); got != addr {
			t.Errorf("Addr after Start: %s, want %s as before", got, addr)
		}
		if got := ask(t, addr, "GET", "key"); got != "value" {
			t.Errorf("GET after Kill (paused: %t) and Start: %q, want value", paused, got)
		}
	}
}

func TestStop(t *testing.T) {
	s := testserver.Redis(t)
	s.Stop()
	if _, err := request(s.Addr(), time.Second, "PING"); err == nil {
		t.Error("PING after Stop was answered")
	}
	s.Start()
	s.Pause()
	s.Stop()
	s.Start()
	if got := ask(t, s.Addr(), "PING"); got != "PONG" {
		t.Errorf("PING after Start: %q, want PONG", got)
	}
}

func TestArgs(t *testing.T) {
	s := testserver.Redis(t, testserver.Args("--requirepass", "opensesame"))
	if got, err := request(s.Addr(), time.Second, "GET", "key"); err == nil || !strings.HasPrefix(err.Error(), "NOAUTH") {
		t.Errorf("GET without password: %q, %v, want NOAUTH", got, err)
	}

	primary := testserver.Redis(t)
	host, port, err := net.SplitHostPort(primary.Addr())
	if err != nil {
		t.Fatal(err)
	}
	replica := testserver.Redis(t, testserver.Args("--replicaof", host+" "+port))
	if got := ask(t, replica.Addr(), "ROLE"); got != "slave" {
		t.Errorf("ROLE of the replica: %q, want slave", got)
	}
}

func TestServerOfTheEnvironment(t *testing.T) {
	own := testserver.Redis(t)
	t.Setenv("HOLDFAST_TEST_REDIS", own.Addr())

	var s *testserver.Server
	tb := run(t, func(tb testing.TB) { s = testserver.Redis(tb) })
	if tb.failed != "" || tb.skipped != "" {
		t.Fatalf("Redis: failed %q, skipped %q", tb.failed, tb.skipped)
	}
	if s.Addr() != own.Addr() || s.CanFault() {
		t.Errorf("Addr %s, CanFault %t, want %s, false", s.Addr(), s.CanFault(), own.Addr())
	}
	for name, f := range map[string]func(*testserver.Server){
		"Pause":  (*testserver.Server).Pause,
		"Resume": (*testserver.Server).Resume,
		"Kill":   (*testserver.Server).Kill,
		"Stop":   (*testserver.Server).Stop,
		"Start":  (*testserver.Server).Start,
	} {
		tb := run(t, func(tb testing.TB) { f(testserver.Redis(tb)) })
		if !strings.Contains(tb.skipped, "HOLDFAST_TEST_REDIS") {
			t.Errorf("%s: skipped with %q, want a skip that names the variable", name, tb.skipped)
		}
	}
	tb = run(t, func(tb testing.TB) { testserver.Redis(tb, testserver.Args("--requirepass", "x")) })
	if !strings.Contains(tb.skipped, "--requirepass") {
		t.Errorf("Args: skipped with %q, want a skip that names them", tb.skipped)
	}
}

func TestServerOfTheEnvironmentIsMute(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOLDFAST_TEST_REDIS", addr)
	tb := run(t, func(tb testing.TB) { testserver.Redis(tb) })
	if !strings.Contains(tb.failed, "HOLDFAST_TEST_REDIS") {
		t.Errorf("failed with %q, want a failure that names the variable", tb.failed)
	}
}

func TestMissingProgram(t *testing.T) {
	ownProcess(t)
	t.Setenv("PATH", t.TempDir())
	tb := run(t, func(tb testing.TB) { testserver.Redis(tb) })
	if !strings.Contains(tb.failed, "make setup") {
		t.Errorf("failed with %q, want the command that mends it", tb.failed)
	}
}

func TestFailedStartShowsTheLog(t *testing.T) {
	ownProcess(t)
	tb := run(t, func(tb testing.TB) { testserver.Redis(tb, testserver.Args("--no-such-directive", "yes")) })
	if !strings.Contains(tb.failed, "exit status") || !strings.Contains(tb.log, "no-such-directive") {
		t.Errorf("failed with %q and the log %q, want the exit status and Redis's complaint", tb.failed, tb.log)
	}
}

func TestUseOfADeadServerFails(t *testing.T) {
	ownProcess(t)
	tb := run(t, func(tb testing.TB) {
		s := testserver.Redis(tb)
		s.Kill()
		s.Pause()
	})
	if !strings.Contains(tb.failed, "not running") {
		t.Errorf("Pause after Kill: failed with %q, want that it is not running", tb.failed)
	}
	tb = run(t, func(tb testing.TB) {
		s := testserver.Redis(tb)
		_, _ = request(s.Addr(), time.Second, "SHUTDOWN", "NOSAVE") // answered by the end of the connection
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			s.Resume()
		}
	})
	if !strings.Contains(tb.failed, "ended") {
		t.Errorf("Resume after SHUTDOWN: failed with %q, want that it has ended", tb.failed)
	}
}

// A program that takes the port between the look for a free one and the server's
// start is played by this test, with a script in the place of redis-server that
// gives it the time.
func TestLostPort(t *testing.T) {
	ownProcess(t)
	redis, err := exec.LookPath("redis-server")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	script := `#!/bin/sh
cd ` + dir + `
if [ ! -e port ]; then
	echo "$4" >port.new && mv port.new port
	while [ ! -e taken ]; do sleep 0.01; done
fi
exec ` + redis + ` "$@"
`
	if err := os.WriteFile(filepath.Join(dir, "redis-server"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))

	lost := make(chan string, 1)
	go func() {
		for t.Context().Err() == nil {
			port, err := os.ReadFile(filepath.Join(dir, "port"))
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			l, err := net.Listen("tcp", "127.0.0.1:"+strings.TrimSpace(string(port)))
			if err != nil {
				t.Errorf("take the port: %v", err)
				return
			}
			defer l.Close()
			lost <- l.Addr().String()
			if err := os.WriteFile(filepath.Join(dir, "taken"), nil, 0o600); err != nil {
				t.Errorf("tell: %v", err)
				return
			}
			<-t.Context().Done()
		}
	}()
	s := testserver.Redis(t)
	if addr := <-lost; s.Addr() == addr {
		t.Errorf("Addr: %s, which was lost", addr)
	}
	if got := ask(t, s.Addr(), "PING"); got != "PONG" {
		t.Errorf("PING: %q, want PONG", got)
	}
}

func BenchmarkRedisStart(b *testing.B) {
	for b.Loop() {
		run(b, func(tb testing.TB) { testserver.Redis(tb) })
	}
}

// conn speaks as much of RESP as these tests need.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, addr string) *conn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &conn{c, bufio.NewReader(c)}
}

func (c *conn) request(limit time.Duration, args ...string) (string, error) {
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	cmd := fmt.Sprintf("*%d\r\n", len(args))
	for _, arg := range args {
		cmd += fmt.Sprintf("$%d\r\n%s\r\n", len(arg), arg)
	}
	if _, err := io.WriteString(c, cmd); err != nil {
		return "", err
	}
	return c.answer()
}

// answer reads one answer; of an array, the first element.
func (c *conn) answer() (string, error) {
	line, err := c.r.ReadString('\n')
	if err != nil {
		return "", err
	}
	kind, rest := line[0], strings.TrimSpace(line[1:])
	switch kind {
	case '*':
		return c.answer()
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		body := make([]byte, n+2)
		_, err = io.ReadFull(c.r, body)
		return string(body[:n]), err
	case '-':
		return "", fmt.Errorf("%s", rest)
	default:
		return rest, nil
	}
}

// request makes one request on a connection of its own.
func request(addr string, limit time.Duration, args ...string) (string, error) {
	c, err := net.DialTimeout("tcp", addr, limit)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return (&conn{c, bufio.NewReader(c)}).request(limit, args...)
}

func ask(t *testing.T, addr string, args ...string) string {
	t.Helper()
	got, err := request(addr, 10*time.Second, args...)
	if err != nil {
		t.Fatalf("%s: %v", args[0], err)
	}
	return got
}
