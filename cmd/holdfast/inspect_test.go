//go:build linux || darwin

package main

import (
	"encoding/json"
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

// inspectOn prepares holdfast inspect, as users have it, on what url names.
func inspectOn(t *testing.T, url string, args ...string) *exec.Cmd {
	t.Helper()
	return builtCommand(t, url, append([]string{"inspect"}, args...)...)
}

func TestInspect(t *testing.T) {
	for name, url := range map[string]string{
		"file": "file://" + t.TempDir(), "redis": "redis://" + testserver.Redis(t).Addr(), "etcd": "etcd://" + testserver.Etcd(t).Addr(),
	} {
		t.Run(name, func(t *testing.T) {
			end := filepath.Join(t.TempDir(), "end")
			free := start(t, inspectOn(t, url, "a job"))
			free.want(0)
			if got := free.stdout(); got != "\"a job\" is free\n" {
				t.Errorf("of a free lock: %q", got)
			}
			holder := start(t, builtOn(t, url+"?owner=host%201", append([]string{"a job", "--"},
				sh(`echo "$HOLDFAST_TOKEN"; while [ ! -e "$1" ]; do sleep 0.01; done`, end)...)...))
			token := awaitLine(t, holder.out)
			held := start(t, inspectOn(t, url, "a job"))
			held.want(0)
			if got := held.stdout(); !strings.HasPrefix(got, `"a job" is held by host 1, since `) || !strings.HasSuffix(got, "with token "+token+"\n") {
				t.Errorf("of a lock with token %s: %q", token, got)
			}
			p := start(t, inspectOn(t, url, "--json", "a job"))
			p.want(0)
			var got struct {
				Key     string
				Holders []struct {
					Owner  string
					Token  uint64
					Since  time.Time
					Shared *bool
				}
				Waiters *int
			}
			if err := json.Unmarshal([]byte(p.stdout()), &got); err != nil {
				t.Fatal(err)
			}
			if got.Key != "a job" || got.Waiters == nil || len(got.Holders) != 1 {
				t.Fatalf("--json: %s", p.stdout())
			}
			if h := got.Holders[0]; h.Owner != "host 1" || strconv.FormatUint(h.Token, 10) != token ||
				time.Since(h.Since).Abs() > time.Minute || h.Shared == nil {
				t.Errorf("--json: %s", p.stdout())
			}
			touch(t, end)
			holder.want(0)
			p = start(t, inspectOn(t, url, "--json", "a job"))
			p.want(0)
			if got := p.stdout(); got != `{"key":"a job","holders":[],"waiters":0}`+"\n" {
				t.Errorf("--json of a free lock: %s", got)
			}
		})
	}
}

func TestInspectExitCodes(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	listener.Close()
	here := "file://" + t.TempDir()
	start(t, inspectOn(t, here)).want(exitUsage, "one key")
	start(t, inspectOn(t, here, "a", "b")).want(exitUsage, "one key")
	start(t, inspectOn(t, here, "")).want(exitUsage, "empty")
	start(t, inspectOn(t, here, "--jsn", "a")).want(exitUsage, "--jsn")
	start(t, inspectOn(t, "redis://"+nobody, "a")).want(exitUnavailable, "server")
	start(t, inspectOn(t, "file:///no/such/directory", "a")).want(exitConfig, "/no/such/directory")
}

// TestAnswerCannotBeWritten: that is no fault of the command line.
func TestAnswerCannotBeWritten(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("this system has no file that is always full")
	}
	defer full.Close()
	for _, args := range [][]string{{"version"}, {"completion", "bash"}, {"inspect", "k"}, {"inspect", "--json", "k"}} {
		cmd := builtCommand(t, "file://"+t.TempDir(), args...)
		cmd.Stdout = full
		start(t, cmd).want(exitNotWritten, "no space left", "make room")
	}
}
