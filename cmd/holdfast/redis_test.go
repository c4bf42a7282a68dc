//go:build unix

package main

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
)

// built prepares the command as users have it, on the Redis at addr.
func built(t *testing.T, addr string, args ...string) *exec.Cmd {
	t.Helper()
	return builtOn(t, "redis://"+addr, args...)
}

// builtOn prepares it on what url names; with "", nothing is said.
func builtOn(t *testing.T, url string, args ...string) *exec.Cmd {
	t.Helper()
	return builtCommand(t, url, append([]string{"run"}, args...)...)
}

func proxyTo(t *testing.T, addr string) *conformance.Proxy {
	t.Helper()
	proxy, err := conformance.NewProxy(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { proxy.Close() })
	return proxy
}

// key is of this test alone, even on a server that outlives it.
func key(t *testing.T) string {
	return t.Name() + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
}

func TestRedisTurns(t *testing.T) {
	takeTurns(t, "redis://"+testserver.Redis(t).Addr())
}

// takeTurns runs several programs at once under one lock: they must not overlap, and each
// gets a greater token than the one before.
func takeTurns(t *testing.T, url string) {
	t.Helper()
	key, log := key(t), filepath.Join(t.TempDir(), "log")
	const runs = 6
	var all []*process
	for range runs {
		all = append(all, start(t, builtOn(t, url, append([]string{key, "--"},
			sh(`echo "start $HOLDFAST_TOKEN" >> "$1"; sleep 0.05; echo "end $HOLDFAST_TOKEN" >> "$1"`, log)...)...)))
	}
	for _, p := range all {
		p.want(0)
	}
	lines := strings.Split(strings.TrimSpace(read(t, log)), "\n")
	if len(lines) != 2*runs {
		t.Fatalf("%d lines, want %d: %q", len(lines), 2*runs, lines)
	}
	last := uint64(0)
	for i := 0; i < len(lines); i += 2 {
		text, _ := strings.CutPrefix(lines[i], "start ")
		token, err := strconv.ParseUint(text, 10, 64)
		if err != nil || token <= last || lines[i+1] != "end "+text {
			t.Fatalf("turns overlap, or tokens do not grow: %q", lines)
		}
		last = token
	}
}

func TestRedisExitCodes(t *testing.T) {
	server, key := testserver.Redis(t), key(t)
	dir := t.TempDir()
	end := filepath.Join(dir, "end")
	holder := start(t, built(t, server.Addr(), append([]string{key, "--"}, sh(`echo ready; while [ ! -e "$1" ]; do sleep 0.01; done`, end)...)...))
	awaitLine(t, holder.out)
	start(t, built(t, server.Addr(), "--no-wait", key, "--", "true")).want(exitBusy, strconv.Quote(key))
	start(t, built(t, server.Addr(), "--wait", "2s", key, "--", "true")).want(exitBusy, strconv.Quote(key))
	start(t, built(t, server.Addr(), "--no-wait", key+"other", "--", "true")).want(0)
	waiter := start(t, built(t, server.Addr(), "--wait", patience.String(), key, "--", "true"))
	touch(t, end)
	holder.want(0)
	waiter.want(0)

	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	listener.Close()
	start(t, built(t, nobody, "--no-wait", key, "--", "true")).want(exitUnavailable, "server")
	start(t, built(t, nobody, "--wait", "300ms", key, "--", "true")).want(exitUnavailable, "server")

	proxy := proxyTo(t, server.Addr())
	proxy.Stall()
	start(t, built(t, proxy.Addr(), "--wait", "300ms", key, "--", "true")).want(exitUnavailable, "server")
	mute, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	waiting := start(t, built(t, mute.Addr().String(), key, "--", "true"))
	conn, err := mute.Accept() // it is somewhere inside the backend, wherever that is
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	waiting.signal(syscall.SIGTERM)
	waiting.want(128+int(syscall.SIGTERM), "nothing was started")

	for _, url := range []string{"redis://" + server.Addr() + "?no_such_key=1", "no-such-scheme://h", "redis://u:hunter2%zz@h", "redis://" + server.Addr() + "?require=fifo,nonsense"} {
		cmd := built(t, server.Addr(), "--url", url, key, "--", "true")
		p := start(t, cmd)
		p.want(exitConfig, "")
		if strings.Contains(p.stderr(), "hunter2") {
			t.Errorf("shows the password: %q", p.stderr())
		}
	}
}

// writer is a program that never ends by itself, does not obey TERM, and writes
// "one" all the time.
const writer = `trap "" TERM; echo ready; while :; do echo one >> "$1"; done`

// TestRedisKilledHolder: the next holder gets the lock within the TTL, and the
// program of the first does not run beside it.
func TestRedisKilledHolder(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("this system does not tell the program")
	}
	server, key := testserver.Redis(t), key(t)
	log := filepath.Join(t.TempDir(), "log")
	const ttl, slack = 2 * time.Second, 4 * time.Second
	holder := start(t, built(t, server.Addr(), append([]string{"--ttl", ttl.String(), key, "--"}, sh(writer, log)...)...))
	awaitLine(t, holder.out)
	next := start(t, built(t, server.Addr(), append([]string{key, "--"}, sh(`echo two >> "$1"`, log)...)...))
	begin := time.Now()
	holder.signal(syscall.SIGKILL)
	next.want(0)
	took := time.Since(begin)
	t.Logf("the next holder had run %v after the kill; TTL %v", took, ttl)
	if took > ttl+slack {
		t.Errorf("the lock was free only after %v", took)
	}
	if got := read(t, log); strings.Contains(got[strings.Index(got, "two"):], "one") {
		t.Error("the first program ran beside the second")
	}
}

// TestRedisCutOffHolder: a holder that cannot reach the server ends its program
// before anybody else starts one.
func TestRedisCutOffHolder(t *testing.T) {
	server, key := testserver.Redis(t), key(t)
	proxy := proxyTo(t, server.Addr())
	log := filepath.Join(t.TempDir(), "log")
	holder := start(t, built(t, proxy.Addr(), append([]string{"--ttl", "3s", key, "--"}, sh(writer, log)...)...))
	awaitLine(t, holder.out)
	next := start(t, built(t, server.Addr(), append([]string{key, "--"}, sh(`echo two >> "$1"; tail -n 1 "$1" | grep -q two`, log)...)...))
	proxy.Stall()
	begin := time.Now()
	holder.want(exitLost, "lost", strconv.Quote(key))
	ended := time.Since(begin)
	next.want(0)
	t.Logf("cut off: the holder had ended after %v, the next had run after %v", ended, time.Since(begin))
	if got := read(t, log); !strings.HasSuffix(got, "one\ntwo\n") {
		t.Error("the first program ran beside the second")
	}
}

// TestRedisReleaseUnanswered: the program's exit code stands.
func TestRedisReleaseUnanswered(t *testing.T) {
	server, key := testserver.Redis(t), key(t)
	proxy := proxyTo(t, server.Addr())
	end := filepath.Join(t.TempDir(), "end")
	p := start(t, built(t, proxy.Addr(), append([]string{"--ttl", "1m", key, "--"}, sh(`echo ready; while [ ! -e "$1" ]; do sleep 0.01; done; exit 3`, end)...)...))
	awaitLine(t, p.out)
	proxy.Stall()
	begin := time.Now()
	touch(t, end)
	p.want(3, "warning", "not confirmed", "1m0s")
	if took := time.Since(begin); took > releaseTimeout+2*time.Second+patience/3 {
		t.Errorf("took %v", took)
	}
}

// TestRedisGoesAway: whoever waits for a lock learns that there is nobody to ask.
func TestRedisGoesAway(t *testing.T) {
	s := redisSite(t)
	proxy := proxyTo(t, strings.TrimPrefix(s.url, "redis://"))
	holder := s.holder()
	through := func(flags ...string) *process {
		t.Helper()
		return start(t, builtOn(t, "redis://"+proxy.Addr(), append(flags, "--ttl", "2s", s.key, "--", "true")...))
	}
	waiter := through()
	verbose := through("-v")
	eventually(t, "it waits", func() bool { return strings.Contains(verbose.stderr(), "contended") })
	time.Sleep(100 * time.Millisecond) // for the other, too
	proxy.Stall()
	eventually(t, "it has nobody to ask", func() bool { return strings.Contains(verbose.stderr(), "unanswered") })
	eventually(t, "a word that there is nobody to ask", func() bool { return strings.Contains(waiter.stderr(), "waiting for it") })
	proxy.Heal()
	holder.signal(syscall.SIGTERM)
	holder.want(0)
	waiter.want(0, "cannot be reached", "waiting for it")
	if code := verbose.exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestRedisProgramEndsDuringARenewal: the release waits for the renewal, and neither undoes
// the other.
func TestRedisProgramEndsDuringARenewal(t *testing.T) {
	server, key := testserver.Redis(t), key(t)
	proxy := proxyTo(t, server.Addr())
	proxy.Delay(0, 100*time.Millisecond)
	var all []*process
	for i := range 10 { // the first renewal is sent after a third of the TTL, or a little before
		all = append(all, start(t, built(t, proxy.Addr(), append([]string{"--ttl", "3s", key + strconv.Itoa(i), "--"}, sh(fmt.Sprintf("sleep 0.%02d", 80+2*i))...)...)))
	}
	for i, p := range all {
		p.want(0)
		start(t, built(t, server.Addr(), "--no-wait", key+strconv.Itoa(i), "--", "true")).want(0)
	}
}

// A server that is down when the command starts is waited for, as the lock is.
func TestRedisComesBack(t *testing.T) {
	s := testserver.Redis(t)
	s.Kill()
	p := start(t, built(t, s.Addr(), key(t), "--", "true"))
	eventually(t, "a word that it waits", func() bool { return strings.Contains(p.stderr(), "waiting for it") })
	s.Start()
	p.want(0, "waiting for it")
}
