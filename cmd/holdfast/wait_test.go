//go:build linux || darwin

package main

import (
	"net"
	"strings"
	"syscall"
	"testing"
	"time"
)

// holder holds the lock until it gets TERM.
func (s *site) holder() *process {
	s.t.Helper()
	p := s.run(nil, sh(`trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done`)...)
	awaitLine(s.t, p.out)
	return p
}

func TestWait(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		wait := func(args ...string) *process {
			t.Helper()
			return start(t, s.command(append([]string{"wait", s.key}, args...)...))
		}
		wait().want(0)
		wait("--timeout", "0").want(0)
		holder := s.holder()
		wait("--timeout", "0").want(exitBusy, s.key, "held by", "--timeout")
		wait("--timeout", "300ms").want(exitBusy, s.key, "held by")
		interrupted := wait()
		long := wait("--timeout", patience.String())
		endless := wait()
		time.Sleep(300 * time.Millisecond) // for them to have looked more than once
		interrupted.signal(syscall.SIGTERM)
		if code := interrupted.exit(); code != -1 {
			t.Errorf("exit code %d of a wait that was ended by a signal", code)
		}
		s.run([]string{"--no-wait"}, "true").want(exitBusy, "held")
		holder.signal(syscall.SIGTERM)
		holder.want(0)
		long.want(0)
		endless.want(0)
	})
}

// TestWaitTakesNothing: a job that does not wait is not turned away because somebody looks.
func TestWaitTakesNothing(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		const looks = 40
		var all []*process
		for range looks {
			all = append(all, start(t, s.command("wait", s.key)))
			if len(all)%4 == 0 {
				s.run([]string{"--no-wait"}, "true").want(0)
			}
		}
		for _, p := range all {
			p.want(0)
		}
	})
}

// TestWaitForTheServer: one that is away may come back.
func TestWaitForTheServer(t *testing.T) {
	s := redisSite(t)
	proxy := proxyTo(t, strings.TrimPrefix(s.url, "redis://"))
	holder := s.holder()
	through := func(args ...string) *process {
		t.Helper()
		return start(t, builtCommand(t, "redis://"+proxy.Addr(), append([]string{"wait", s.key}, args...)...))
	}
	waiter := through()
	time.Sleep(200 * time.Millisecond)
	proxy.Stall()
	through("--timeout", "300ms").want(exitUnavailable, "server")
	through("--timeout", "0").want(exitUnavailable, "server")
	proxy.Heal()
	holder.signal(syscall.SIGTERM)
	holder.want(0)
	if code := waiter.exit(); code != 0 {
		t.Errorf("exit code %d, stderr %q", code, waiter.stderr())
	}
}

func TestWaitExitCodes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := "redis://" + listener.Addr().String()
	listener.Close()
	here := fileSite(t).url
	wait := func(url string, args ...string) *process {
		t.Helper()
		return start(t, builtCommand(t, url, append([]string{"wait"}, args...)...))
	}
	wait(here).want(exitUsage, "one key")
	wait(here, "a", "b").want(exitUsage, "one key")
	wait(here, "").want(exitUsage, "empty")
	wait(here, "--timeout", "-1s", "a").want(exitUsage, "--timeout")
	wait(here, "--tmeout", "1s", "a").want(exitUsage, "--tmeout")
	wait(nobody, "--timeout", "300ms", "a").want(exitUnavailable, "server")
	wait(nobody, "--timeout", "0", "a").want(exitUnavailable, "server")
	wait("file:///no/such/directory", "a").want(exitConfig, "/no/such/directory")
	wait("nosuch://h", "a").want(exitConfig, "nosuch")
}
