//go:build linux || darwin

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestManual: a page for each command, which a formatter reads without complaint, and
// which tells what the help tells.
func TestManual(t *testing.T) {
	dir := t.TempDir()
	start(t, builtCommand(t, "", "manual", dir)).want(0)
	for page, texts := range map[string][]string{
		"holdfast.1":            {".SH MESSAGES", "holdfast-run(1)"},
		"holdfast-run.1":        {".SH SIGNALS", ".SH IF THE LOCK IS LOST", ".SH EXIT CODES", "--grace=D", "126    PROGRAM cannot be executed", ".SH EXAMPLE"},
		"holdfast-inspect.1":    {"--json"},
		"holdfast-wait.1":       {"--timeout=D"},
		"holdfast-version.1":    {"version"},
		"holdfast-completion.1": {"completion"},
	} {
		text := strings.NewReplacer(`\-`, "-", `\fB`, "", `\fP`, "").Replace(read(t, filepath.Join(dir, page)))
		for _, want := range texts {
			if !strings.Contains(text, want) {
				t.Errorf("%s does not contain %q", page, want)
			}
		}
		if groff, err := exec.LookPath("groff"); err == nil {
			out, err := exec.Command(groff, "-man", "-Tascii", "-ww", "-z", filepath.Join(dir, page)).CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%s: groff says %v: %s", page, err, out)
			}
		}
	}
	start(t, builtCommand(t, "", "manual", dir+"/none")).want(exitUsage, "none", "make the directory")
	start(t, builtCommand(t, "", "manual")).want(exitUsage, "")
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, builtCommand(t, "", "manual", file)).want(exitUsage, "not a directory")
}

// TestCompletion: the scripts of all shells, and what they ask for.
func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		p := start(t, builtCommand(t, "", "completion", shell))
		p.want(0)
		script := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(script, []byte(p.stdout()), 0o600); err != nil {
			t.Fatal(err)
		}
		if path, err := exec.LookPath(shell); err == nil && shell != "powershell" {
			if out, err := exec.Command(path, "-n", script).CombinedOutput(); err != nil {
				t.Errorf("%s does not read its script: %v\n%s", shell, err, out)
			}
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"in"}, "inspect\tSay who holds a lock\n:4\n"},
		{[]string{"run", "--log", ""}, "text\njson\n:4\n"},
		{[]string{"run", ""}, ":4\n"},
		{[]string{"run", "key", "--", ""}, ":0\n"},
		{[]string{"wait", ""}, ":4\n"},
	} {
		p := start(t, builtCommand(t, "", append([]string{"__complete"}, tt.args...)...))
		if code := p.exit(); code != 0 || p.stdout() != tt.want {
			t.Errorf("completion of %q: exit code %d, %q, want %q", tt.args, code, p.stdout(), tt.want)
		}
	}
}
