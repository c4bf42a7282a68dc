//go:build linux || darwin

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

// TestVerbose: what happens to the lock and to the program, a line each, in order.
func TestVerbose(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p := s.run([]string{"-v", "--ttl", "300ms"}, sh(`echo ready; trap 'exit 3' USR1; while :; do sleep 0.01; done`)...)
		awaitLine(t, p.out)
		next := s.run([]string{"-v", "--ttl", "300ms"}, "true")
		eventually(t, "a renewal, and one who waits", func() bool {
			return strings.Contains(p.stderr(), "renewed") && strings.Contains(next.stderr(), "contended")
		})
		p.signal(syscall.SIGUSR1)
		if code := p.exit(); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
		if code := next.exit(); code != 0 {
			t.Errorf("exit code %d of the next, want 0", code)
		}
		checkEvents(t, textLines(t, p.stderr()), "acquired", "started", "renewed", "signal", "ended", "released")
		checkEvents(t, textLines(t, next.stderr()), "contended", "acquired", "started", "ended", "released")
		if !strings.Contains(p.stderr(), "msg=acquired key="+s.key+" token=") {
			t.Errorf("the event does not tell key and token: %s", p.stderr())
		}
	})
}

// textLines returns the "msg" of each line.
func textLines(t *testing.T, text string) (events []string) {
	t.Helper()
	for line := range strings.Lines(text) {
		_, msg, ok := strings.Cut(line, " msg=")
		if !ok || !strings.HasPrefix(line, "holdfast: time=") {
			t.Errorf("line %q", line)
		}
		events = append(events, strings.Fields(msg)[0])
	}
	return events
}

// checkEvents wants all of want, in their order; others may be between them.
func checkEvents(t *testing.T, got []string, want ...string) {
	t.Helper()
	rest := got
	for _, w := range want {
		i := slices.Index(rest, w)
		if i < 0 {
			t.Fatalf("events %q, want %q in this order", got, want)
		}
		rest = rest[i+1:]
	}
}

// TestJSON: everything that holdfast says is an object, with and without -v.
func TestJSON(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		p := s.run([]string{"--log", "json", "-v"}, sh("exit 3")...)
		if code := p.exit(); code != 3 {
			t.Errorf("exit code %d, want 3", code)
		}
		var events []string
		for _, o := range objects(t, p.stderr()) {
			events = append(events, o["msg"].(string))
			if o["msg"] != "released" {
				continue
			}
			if took, ok := o["took"].(float64); !ok || took <= 0 || took > patience.Seconds() || o["key"] != s.key {
				t.Errorf("a release as JSON, with seconds: %v", o)
			}
		}
		checkEvents(t, events, "acquired", "started", "ended", "released")

		holder := s.holder()
		busy := s.run([]string{"--log=json", "--no-wait"}, "true")
		if code := busy.exit(); code != exitBusy {
			t.Errorf("exit code %d, want %d", code, exitBusy)
		}
		said := objects(t, busy.stderr())
		if len(said) != 1 || said[0]["level"] != "ERROR" || said[0]["exit_code"] != float64(exitBusy) || !strings.Contains(said[0]["msg"].(string), s.key) {
			t.Errorf("busy as JSON: %v", said)
		}
		holder.signal(syscall.SIGTERM)
		holder.want(0)
	})
}

// objects returns the lines as JSON objects, each holdfast's.
func objects(t *testing.T, text string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(text) {
		var o map[string]any
		if err := json.Unmarshal([]byte(line), &o); err != nil || o["logger"] != "holdfast" || o["time"] == nil || o["level"] == nil {
			t.Errorf("line %q: %v", line, err)
		}
		all = append(all, o)
	}
	return all
}

// TestWarning: what the backend's operator should mend is said without being asked for.
func TestWarning(t *testing.T) {
	server := testserver.Redis(t, testserver.Args("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"))
	s := &site{t: t, url: "redis://" + server.Addr(), key: "k"}
	s.run(nil, "true").want(0, "warning: ", "noeviction")
	p := s.run([]string{"--log", "json"}, "true")
	if code := p.exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if said := objects(t, p.stderr()); len(said) != 1 || said[0]["level"] != "WARN" {
		t.Errorf("a warning as JSON: %v", said)
	}
}

// TestEventsThatNobodyReads: they must not keep the lock from being renewed, nor
// holdfast from ending.
func TestEventsThatNobodyReads(t *testing.T) {
	s := redisSite(t)
	r, w := full(t)
	cmd := s.runCommand([]string{"-v", "--ttl", "1s"}, sh(`echo ready; sleep 3; exit 4`)...)
	cmd.Stderr = w
	p := start(t, cmd)
	w.Close()
	awaitLine(t, p.out)
	s.run([]string{"--wait", "2s"}, "true").want(exitBusy, "held")
	if code := p.exit(); code != 4 {
		t.Errorf("exit code %d, want 4", code)
	}
	r.Close()
}

// TestMessagesThatNobodyReads: they must not keep a signal from ending holdfast.
func TestMessagesThatNobodyReads(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		for _, read := range []bool{false, true} {
			r, w := full(t)
			cmd := s.runCommand([]string{"--ttl", "2s", "--max-hold", "1s"}, sh(`echo $$; exec sleep 60`)...)
			cmd.Stderr = w
			p := start(t, cmd)
			w.Close()
			pid, err := strconv.Atoi(awaitLine(t, p.out))
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the program has ended", func() bool { return gone(pid) })
			if !read {
				s.run(nil, "true").want(0) // nobody has to read for the lock to be free
				p.signal(syscall.SIGTERM)
				if code := p.exit(); code != exitLost {
					t.Errorf("exit code %d, want %d", code, exitLost)
				}
				continue
			}
			said, err := io.ReadAll(r)
			if err != nil || !strings.HasSuffix(string(said), "\n") || !strings.Contains(string(said), "--max-hold") {
				t.Errorf("%v; said %q", err, strings.TrimLeft(string(said), "\x00"))
			}
			if code := p.exit(); code != exitLost {
				t.Errorf("exit code %d, want %d", code, exitLost)
			}
		}
	})
}

// TestWaitThatNobodyReadsOf ends by a signal all the same.
func TestWaitThatNobodyReadsOf(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	_, w := full(t)
	cmd := command(t, "run", "--url", "stub:?acquire=busy&log="+log, "k", "--", "true")
	cmd.Stderr = w
	p := start(t, cmd)
	awaitLine(t, log)
	p.signal(syscall.SIGTERM)
	if code := p.exit(); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("exit code %d", code)
	}
}

// TestQueueSaysWhatIsLost: whoever reads too late learns how much is missing.
func TestQueueSaysWhatIsLost(t *testing.T) {
	r, w := io.Pipe()
	var lost atomic.Int64
	q := newQueue(w, func(n int) { lost.Add(int64(n)) })
	const lines = 3 * queueLines
	for i := range lines {
		_, _ = fmt.Fprintf(q, "%d\n", i)
	}
	var read int64
	go func() {
		q.close(nil)
		w.Close()
	}()
	for in := bufio.NewScanner(r); in.Scan(); {
		read++
	}
	if got := read + lost.Load(); got != lines || lost.Load() == 0 {
		t.Errorf("%d lines were read and %d told as lost, of %d", read, lost.Load(), lines)
	}
}

// TestQueueThatNobodyReads does not keep the command from ending.
func TestQueueThatNobodyReads(t *testing.T) {
	r, w := io.Pipe()
	q := newQueue(w, func(int) {})
	_, _ = fmt.Fprintln(q, "line")
	begin := time.Now()
	q.close(nil)
	if took := time.Since(begin); took < flushTime || took > patience/2 {
		t.Errorf("close took %v, want %v", took, flushTime)
	}
	r.Close()
	<-q.done
}
