//go:build unix

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
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
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, append([]string{"run"}, args...)...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, urlVariable+"=") })
	if url != "" {
		cmd.Env = append(cmd.Env, urlVariable+"="+url)
	}
	return cmd
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
	waiting := start(t, built(t, proxy.Addr(), key, "--", "true"))
	time.Sleep(200 * time.Millisecond) // for it to be somewhere inside the backend, wherever that is
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

// TestRedisLockIsFreedAtOnce: by a program that leaves a process behind, which
// keeps the output open.
func TestRedisLockIsFreedAtOnce(t *testing.T) {
	server, key := testserver.Redis(t), key(t)
	pid := filepath.Join(t.TempDir(), "pid")
	start(t, built(t, server.Addr(), "--ttl", "1h", key, "--", "sh", "-c", `sleep 600 & echo $! > "$0"`, pid)).want(0)
	n, err := strconv.Atoi(awaitLine(t, pid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(n, syscall.SIGKILL) })
	start(t, built(t, server.Addr(), "--no-wait", key, "--", "true")).want(0)
}

// TestRedisHeldWhileDraining: a drain that is longer than the TTL.
func TestRedisHeldWhileDraining(t *testing.T) {
	server, key := testserver.Redis(t), key(t)
	log := filepath.Join(t.TempDir(), "log")
	holder := start(t, built(t, server.Addr(), append([]string{"--ttl", "1s", key, "--"},
		sh(`trap 'sleep 2.5; echo "one ends" >> "$1"; exit 0' TERM; echo ready; while :; do sleep 0.01; done`, log)...)...))
	awaitLine(t, holder.out)
	next := start(t, built(t, server.Addr(), append([]string{key, "--"}, sh(`echo "two starts" >> "$1"`, log)...)...))
	holder.signal(syscall.SIGTERM)
	holder.want(0)
	next.want(0)
	if got := read(t, log); got != "one ends\ntwo starts\n" {
		t.Errorf("log %q", got)
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

// TestRedisNoSocketInTheProgram: a leaked connection would keep the lock's session
// open for as long as some daemon lives.
func TestRedisNoSocketInTheProgram(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	server := testserver.Redis(t)
	cmd := built(t, server.Addr(), key(t), "--", "sh", "-c", "echo $$; read line")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, cmd)
	links, err := filepath.Glob("/proc/" + awaitLine(t, p.out) + "/fd/*")
	if err != nil || len(links) < 3 {
		t.Fatal(links, err)
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(target, "socket:") || strings.HasPrefix(target, "anon_inode:") {
			t.Errorf("%s is %s", link, target)
		}
	}
	stdin.Close()
	p.want(1) // read's code at the end of the input
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
