//go:build unix

package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
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
)

// runStub starts "holdfast run" with a stub of the given query, and program after
// the key "k".
func runStub(t *testing.T, query string, program ...string) *process {
	t.Helper()
	return start(t, command(t, append([]string{"run", "--url", "stub:?" + query, "k", "--"}, program...)...))
}

// sh is a shell that keeps to itself what signals did to its children.
func sh(script string, args ...string) []string {
	return append([]string{"sh", "-c", "exec 2>/dev/null\n" + script, "sh"}, args...)
}

func TestExitCodeIsPassedOn(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		for _, code := range []int{0, 1, 2, 3, 125, 126, 127, 128, 255} {
			s.run(nil, sh(fmt.Sprintf("exit %d", code))...).want(code)
		}
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM, syscall.SIGSEGV, syscall.SIGINT} {
			s.run(nil, sh(fmt.Sprintf("kill -%d $$", sig))...).want(128 + int(sig))
		}
	})
}

func TestOwnExitCodes(t *testing.T) {
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	noInterpreter := filepath.Join(dir, "no-interpreter")
	noFormat := filepath.Join(dir, "no-format")
	for path, content := range map[string]string{plain: "x", noInterpreter: "#!/no/such/interpreter\n", noFormat: "\x00\x01"} {
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(plain, 0o644); err != nil {
		t.Fatal(err)
	}
	secret := "hunter2secret"
	ok := []string{"k", "--", "true"}
	tests := []struct {
		name  string
		env   string
		flags []string
		args  []string
		code  int
		texts []string
	}{
		{"no such program", "stub:", nil, []string{"k", "--", "no-such-program"}, exitNotFound, []string{"no-such-program", "PATH"}},
		{"no such path", "stub:", nil, []string{"k", "--", dir + "/none"}, exitNotFound, nil},
		{"empty program", "stub:", nil, []string{"k", "--", ""}, exitNotFound, nil},
		{"no such program, lock busy", "stub:?acquire=busy", nil, []string{"k", "--", "no-such-program"}, exitNotFound, nil},
		{"not executable", "stub:", nil, []string{"k", "--", plain}, exitNotExecutable, []string{"permission"}},
		{"a directory", "stub:", nil, []string{"k", "--", dir}, exitNotExecutable, nil},
		{"no interpreter", "stub:", nil, []string{"k", "--", noInterpreter}, exitNotFound, []string{"interpreter"}},
		{"not a program", "stub:", nil, []string{"k", "--", noFormat}, exitNotExecutable, []string{"#!"}},
		{"busy, one try", "stub:?acquire=busy", []string{"--no-wait"}, ok, exitBusy, []string{`"k"`, "--wait"}},
		{"busy, wait 0", "stub:?acquire=busy", []string{"--wait", "0s"}, ok, exitBusy, nil},
		{"busy, bounded", "stub:?acquire=busy", []string{"--wait", "50ms"}, ok, exitBusy, nil},
		{"unreachable", "stub:?acquire=unavailable", []string{"--wait", "50ms"}, ok, exitUnavailable, []string{"server"}},
		{"unreachable, one try", "stub:?acquire=unavailable", []string{"--no-wait"}, ok, exitUnavailable, nil},
		{"unreachable at opening", "stub:?open=unavailable", []string{"--wait", "50ms"}, ok, exitUnavailable, []string{"connection refused"}},
		{"unreachable at opening, one try", "stub:?open=unavailable", []string{"--no-wait"}, ok, exitUnavailable, []string{"connection refused"}},
		{"mute at opening", "stub:?open=hang", []string{"--wait", "50ms"}, ok, exitUnavailable, nil},
		{"login refused", "stub:?acquire=denied", nil, ok, exitConfig, []string{"NOAUTH"}},
		{"bad URL", "stub:?open=invalid", nil, ok, exitConfig, []string{"HOLDFAST_URL", "unknown query key"}},
		{"URL set and empty", "", nil, ok, exitUsage, []string{"HOLDFAST_URL", "unset"}},
		{"locks of one process", "mem:x", nil, ok, exitConfig, []string{"keeps nobody out"}},
		{"unreadable URL", "stub://user:" + secret + "%zz@host", nil, ok, exitConfig, nil},
		{"bad ttl in URL", "stub:?ttl=0", nil, ok, exitConfig, []string{"ttl"}},
		{"ttl twice", "stub:?ttl=1s", []string{"--ttl", "2s"}, ok, exitUsage, []string{"--ttl"}},
		{"ttl out of range", "stub:", []string{"--ttl", "1ms"}, ok, exitUsage, []string{"100ms"}},
		{"ttl no duration", "stub:", []string{"--ttl", "5"}, ok, exitUsage, []string{"--ttl"}},
		{"grace too long", "stub:?ttl=10s", []string{"--grace", "4.5s"}, ok, exitUsage, []string{"--grace", "less than 4.5s"}},
		{"grace negative", "stub:", []string{"--grace", "-1s"}, ok, exitUsage, nil},
		{"max hold negative", "stub:", []string{"--max-hold", "-1s"}, ok, exitUsage, []string{"--max-hold", "leave it out"}},
		{"max hold of nothing", "stub:", []string{"--max-hold", "0s"}, ok, exitUsage, []string{"--max-hold"}},
		{"no log format", "stub:", []string{"--log", "yaml"}, ok, exitUsage, []string{"--log", "json"}},
		{"wait negative", "stub:", []string{"--wait", "-1s"}, ok, exitUsage, nil},
		{"wait and no wait", "stub:", []string{"--wait", "1s", "--no-wait"}, ok, exitUsage, nil},
		{"unknown flag", "stub:", []string{"--tty"}, ok, exitUsage, []string{"--tty"}},
		{"no --", "stub:", nil, []string{"k", "true"}, exitUsage, []string{"--"}},
		{"no program", "stub:", nil, []string{"k", "--"}, exitUsage, nil},
		{"no key", "stub:", nil, []string{"--", "true"}, exitUsage, nil},
		{"two keys", "stub:", nil, []string{"k", "l", "--", "true"}, exitUsage, nil},
		{"empty key", "stub:", nil, []string{"", "--", "true"}, exitUsage, []string{"empty"}},
		{"long key", "stub:", nil, []string{strings.Repeat("k", 1025), "--", "true"}, exitUsage, []string{"1024"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cmd := command(t, slices.Concat([]string{"run"}, tt.flags, tt.args)...)
			cmd.Env = append(cmd.Env, urlVariable+"="+tt.env)
			p := start(t, cmd)
			p.want(tt.code, append(tt.texts, "")...)
			if strings.Contains(p.stderr(), secret) {
				t.Errorf("stderr shows the password: %q", p.stderr())
			}
		})
	}
	for _, args := range [][]string{{}, {"rin"}, {"version", "x"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			start(t, command(t, args...)).want(exitUsage, "--help")
		})
	}
}

func TestVersionAndHelp(t *testing.T) {
	p := start(t, command(t, "version"))
	p.want(0)
	if got := p.stdout(); !strings.HasPrefix(got, "holdfast ") || !strings.Contains(got, runtime.Version()) {
		t.Errorf("version printed %q", got)
	}
	p = start(t, command(t, "run", "--help"))
	p.want(0)
	for _, text := range []string{"SIGKILL", "EXIT CODES", "--grace", "HOLDFAST_TOKEN"} {
		if !strings.Contains(p.stdout(), text) {
			t.Errorf("help does not mention %s", text)
		}
	}
}

// TestApplyTTL: the URL reaches the backend as it was written, but for the TTL.
func TestApplyTTL(t *testing.T) {
	tests := []struct {
		url  string
		flag time.Duration
		want string
		ttl  time.Duration
	}{
		{"redis://h:1", 0, "redis://h:1", 15 * time.Second},
		{"redis://h:1?ttl=3s", 0, "redis://h:1?ttl=3s", 3 * time.Second},
		{"redis://h:1", 2 * time.Second, "redis://h:1?ttl=2s", 2 * time.Second},
		{"mem:n?owner=a+b", 2 * time.Second, "mem:n?owner=a+b&ttl=2s", 2 * time.Second},
		{"etcd://a:1,b:2/p?x=%2F#f", 1500 * time.Millisecond, "etcd://a:1,b:2/p?x=%2F&ttl=1.5s#f", 1500 * time.Millisecond},
	}
	for _, tt := range tests {
		got, ttl, err := applyTTL(tt.url, tt.flag, tt.flag != 0)
		if err != nil || got != tt.want || ttl != tt.ttl {
			t.Errorf("applyTTL(%q, %v) = %q, %v, %v; want %q, %v", tt.url, tt.flag, got, ttl, err, tt.want, tt.ttl)
		}
	}
}

// TestMargin: Lost closes early enough for TERM, the grace, and KILL.
func TestMargin(t *testing.T) {
	for _, tt := range []struct{ ttl, grace, want string }{
		{"", "", "4.5s"}, {"2s", "", "600ms"}, {"1m", "0s", "1s"}, {"10s", "4.4s", "4.9s"},
	} {
		log := filepath.Join(t.TempDir(), "log")
		args := []string{"run", "--url", "stub:?log=" + log}
		if tt.ttl != "" {
			args = append(args, "--ttl", tt.ttl)
		}
		if tt.grace != "" {
			args = append(args, "--grace", tt.grace)
		}
		start(t, command(t, append(args, "k", "--", "true")...)).want(0)
		if got, want := read(t, log), "opened\nacquired "+tt.want+"\nreleased\nclosed\n"; got != want {
			t.Errorf("ttl %q grace %q: log %q, want %q", tt.ttl, tt.grace, got, want)
		}
	}
}

func TestArgumentsArePassedOn(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"a b", "", "line\nline", "--", "--url", "-x", `"'$HOME\`, "\xff", "*"}
	everywhere(t, func(t *testing.T, s *site) {
		p := s.run(nil, append([]string{self, helperPrefix + "args"}, args[:7]...)...)
		p.want(0)
		var got []string
		if err := json.Unmarshal([]byte(p.stdout()), &got); err != nil || !slices.Equal(got, args[:7]) {
			t.Errorf("arguments %q (%v), want %q", got, err, args[:7])
		}
		p = s.run(nil, append([]string{"printf", `%s\n`}, args...)...)
		p.want(0)
		if got, want := p.stdout(), strings.Join(args, "\n")+"\n"; got != want {
			t.Errorf("arguments %q, want %q", got, want)
		}
	})
}

func TestKeyThatLooksLikeAFlag(t *testing.T) {
	p := start(t, command(t, "run", "--url", "stub:", "--", "--help", "--", "printenv", "HOLDFAST_KEY"))
	p.want(0)
	if got := p.stdout(); got != "--help\n" {
		t.Errorf("key %q, want --help", got)
	}
}

// TestEnvironment: what holdfast reads itself and what a holdfast around it has
// set included.
func TestEnvironment(t *testing.T) {
	env := []string{
		"PATH=" + os.Getenv("PATH"), stubVariable + "=1", urlVariable + "=stub:", "EMPTY=", "LINES=a\nb", "GODEBUG=x=y",
		"GOTRACEBACK=all", "HOLDFAST_KEY=outer", "HOLDFAST_TOKEN=7", "HOLDFAST_TOKENS=7",
	}
	run := func(args ...string) []string {
		cmd := command(t, args...)
		cmd.Env = env
		p := start(t, cmd)
		p.want(0)
		vars := strings.Split(p.stdout(), "\x00")
		slices.Sort(vars)
		return vars
	}
	want := func(extra ...string) []string {
		out, err := (&exec.Cmd{Path: mustLook(t, "env"), Args: []string{"env", "-0"}, Env: slices.Concat(env[:7], env[9:], extra)}).Output()
		if err != nil {
			t.Fatal(err)
		}
		vars := strings.Split(string(out), "\x00")
		slices.Sort(vars)
		return vars
	}
	if got, want := run("run", "my key", "--", "env", "-0"), want("HOLDFAST_KEY=my key", "HOLDFAST_TOKEN=42"); !slices.Equal(got, want) {
		t.Errorf("environment\n%q, want\n%q", got, want)
	}
	env[2] = urlVariable + "=stub:?token=no"
	if got, want := run("run", "k", "--", "env", "-0"), want("HOLDFAST_KEY=k"); !slices.Equal(got, want) {
		t.Errorf("environment without token\n%q, want\n%q", got, want)
	}
}

func mustLook(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestStandardInputIsPassedOn(t *testing.T) {
	input := make([]byte, 4<<20)
	_, _ = rand.Read(input)
	everywhere(t, func(t *testing.T, s *site) {
		cmd := s.runCommand(nil, "cat")
		cmd.Stdin = bytes.NewReader(input)
		p := start(t, cmd)
		p.want(0)
		if p.stdout() != string(input) {
			t.Error("output differs from input")
		}
	})
}

// TestDescriptors: none of holdfast's own reaches the program; those that were
// opened for it do. The test itself may have inherited some: the same program
// without holdfast tells.
func TestDescriptors(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	program := []string{"sh", "-c", "echo $$; read line"}
	descriptors := func(cmd *exec.Cmd) []string {
		cmd.ExtraFiles = []*os.File{null}
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p := start(t, cmd)
		entries, err := os.ReadDir("/proc/" + awaitLine(t, p.out) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(stdin, "\n")
		p.want(0)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	want := descriptors(exec.Command(program[0], program[1:]...))
	everywhere(t, func(t *testing.T, s *site) {
		if got := descriptors(s.runCommand(nil, program...)); !slices.Equal(got, want) {
			t.Errorf("descriptors %v, want %v", got, want)
		}
	})
}

// TestBackgroundProcessIsLeftAlone: the lock protects the program, not what it leaves
// behind, which keeps the output open, and has nothing of holdfast's.
func TestBackgroundProcessIsLeftAlone(t *testing.T) {
	everywhere(t, func(t *testing.T, s *site) {
		pid := filepath.Join(t.TempDir(), "pid")
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		cmd := s.runCommand([]string{"--ttl", "1h"}, "sh", "-c", `sleep 600 & echo $! > "$0"; exit 3`, pid)
		cmd.Stdout = w
		p := start(t, cmd)
		p.want(3)
		w.Close()
		n, err := strconv.Atoi(awaitLine(t, pid))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(n, syscall.SIGKILL) })
		if gone(n) {
			t.Error("the background process was ended")
		}
		if !s.free() {
			t.Error("the lock was not freed at once")
		}
	})
}

func TestReleaseOutcome(t *testing.T) {
	runStub(t, "release=unknown", sh("exit 0")...).want(0, "warning", "not confirmed")
	runStub(t, "release=unknown", sh("exit 5")...).want(5, "warning", "15s")
	runStub(t, "release=lost", sh("exit 0")...).want(exitLost, "lost", "not the holder")
	begin := time.Now()
	runStub(t, "release=hang", sh("exit 5")...).want(5, "warning")
	if took := time.Since(begin); took < releaseTimeout || took > releaseTimeout+patience/2 {
		t.Errorf("took %v, want about %v", took, releaseTimeout)
	}
}

// TestClosedStderr: that a warning cannot be written changes nothing.
func TestClosedStderr(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	log := filepath.Join(t.TempDir(), "log")
	cmd := command(t, "run", "--url", "stub:?release=unknown&log="+log, "k", "--", "sh", "-c", "exit 5")
	cmd.Stderr = w
	p := start(t, cmd)
	if code := p.exit(); code != 5 {
		t.Errorf("exit code %d, want 5", code)
	}
	if got := read(t, log); !strings.HasSuffix(got, "closed\n") {
		t.Errorf("log %q: not closed", got)
	}
	w.Close()
}
