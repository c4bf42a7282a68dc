package testserver_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestCleanupLeavesNoProcess(t *testing.T) {
	ownProcess(t)
	for name, before := range map[string]func(*testserver.Server){
		"running": func(*testserver.Server) {},
		"paused":  (*testserver.Server).Pause,
		"again":   func(s *testserver.Server) { s.Kill(); s.Start() },
		"killed":  (*testserver.Server).Kill,
		"stopped": (*testserver.Server).Stop,
	} {
		t.Run(name, func(t *testing.T) {
			var pid int
			t.Run("use", func(t *testing.T) {
				s := testserver.Redis(t)
				pid = pidOf(t, s)
				before(s)
				if name == "again" {
					pid = pidOf(t, s)
				}
			})
			if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
				t.Errorf("process %d after the test: %v, want that there is none", pid, err)
			}
		})
	}
}

// childEnv makes TestKilledBinaryLeavesNoProcess the test binary that is killed.
const childEnv = "HOLDFAST_TESTSERVER_CHILD"

func TestKilledBinaryLeavesNoProcess(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		s := testserver.Redis(t)
		fmt.Println("addr", s.Addr())
		select {}
	}
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends a child with its parent")
	}
	ownProcess(t)

	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledBinaryLeavesNoProcess$")
	child.Env = append(os.Environ(), childEnv+"=1", "TMPDIR="+t.TempDir()) // it cannot clean up
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var addr string
	for lines := bufio.NewScanner(out); addr == "" && lines.Scan(); {
		t.Log(lines.Text())
		addr, _ = strings.CutPrefix(lines.Text(), "addr ")
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	if addr == "" {
		t.Fatal("the child said no address")
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := request(addr, time.Second, "PING"); err != nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the server on %s outlives the test binary", addr)
		}
	}
}

// ownProcess skips tests of the process itself where there is none of ours.
func ownProcess(t *testing.T) {
	t.Helper()
	if os.Getenv("HOLDFAST_TEST_REDIS") != "" {
		t.Skip("needs a server of its own, and HOLDFAST_TEST_REDIS names one")
	}
}

func pidOf(t *testing.T, s *testserver.Server) int {
	t.Helper()
	for line := range strings.Lines(ask(t, s.Addr(), "INFO", "server")) {
		if value, ok := strings.CutPrefix(line, "process_id:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatal("INFO tells no process_id")
	return 0
}

// recorder is a test that fails or is skipped without consequences.
type recorder struct {
	testing.TB
	cleanups             []func()
	log, failed, skipped string
}

// run runs f as a test of its own, with its cleanups.
func run(tb testing.TB, f func(testing.TB)) *recorder {
	r := &recorder{TB: tb}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			for _, cleanup := range slices.Backward(r.cleanups) {
				cleanup()
			}
		}()
		f(r)
	}()
	<-done
	return r
}

func (r *recorder) Helper()          {}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) Logf(format string, args ...any) { r.log += fmt.Sprintf(format, args...) }

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	runtime.Goexit()
}
