//go:build linux || darwin

package main

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

// site is a real backend, on which the tests run the command as users have it.
type site struct {
	t   *testing.T
	url string
	key string // of this test alone, even on a server that outlives it

	// take takes the lock on key away, behind its holder's back.
	take func()
}

// everywhere runs test on every backend that needs no more than one machine has.
func everywhere(t *testing.T, test func(t *testing.T, s *site)) {
	for name, open := range map[string]func(*testing.T) *site{"file": fileSite, "redis": redisSite} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

func fileSite(t *testing.T) *site {
	dir := t.TempDir()
	s := &site{t: t, url: (&url.URL{Scheme: "file", Path: dir}).String(), key: "site"}
	s.take = func() {
		if err := os.Remove(filepath.Join(dir, s.key+".lock")); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func redisSite(t *testing.T) *site {
	server := testserver.Redis(t)
	s := &site{t: t, url: "redis://" + server.Addr(), key: "site-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	s.take = func() {
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer client.Close()
		if n, err := client.Del(context.Background(), "holdfast:{"+s.key+"}").Result(); n != 1 || err != nil {
			t.Fatalf("%d locks were taken away: %v", n, err)
		}
	}
	return s
}

// run starts "holdfast run" with flags, and program after the key.
func (s *site) run(flags []string, program ...string) *process {
	s.t.Helper()
	return start(s.t, s.runCommand(flags, program...))
}

func (s *site) runCommand(flags []string, program ...string) *exec.Cmd {
	s.t.Helper()
	return s.command(slices.Concat([]string{"run"}, flags, []string{s.key, "--"}, program)...)
}

// command prepares holdfast with args.
func (s *site) command(args ...string) *exec.Cmd {
	s.t.Helper()
	return builtCommand(s.t, s.url, args...)
}

// builtCommand prepares the command as users have it on what url names; with "",
// nothing is said.
func builtCommand(t *testing.T, url string, args ...string) *exec.Cmd {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, urlVariable+"=") })
	if url != "" {
		cmd.Env = append(cmd.Env, urlVariable+"="+url)
	}
	return cmd
}

// free says whether nobody holds the lock that run uses.
func (s *site) free() bool {
	s.t.Helper()
	p := start(s.t, s.command("wait", "--timeout", "0", s.key))
	return p.exit() == 0
}
