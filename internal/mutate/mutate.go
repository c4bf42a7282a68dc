// Package mutate builds test binaries of this module with a few lines of its source
// replaced: broken on purpose, to see which test notices.
package mutate

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Edit is a file, named from the root of the module; a text that it must have once, so
// that mutants follow the source; and what replaces that.
type Edit [3]string

// Build builds the tests of a package, named from the root of the module, with the edits
// applied, and returns the binary.
func Build(t testing.TB, pkg string, edits []Edit) string {
	t.Helper()
	root, dir := moduleRoot(t), t.TempDir()
	sources := make(map[string]string)
	for _, e := range edits {
		name, before, after := e[0], e[1], e[2]
		path := filepath.Join(root, filepath.FromSlash(name))
		if sources[path] == "" {
			data, err := os.ReadFile(path) //nolint:gosec // of this module
			if err != nil {
				t.Fatal(err)
			}
			sources[path] = string(data)
		}
		if n := strings.Count(sources[path], before); n != 1 {
			t.Fatalf("%s has the text to be replaced %d times, want once; follow the source:\n%s", name, n, before)
		}
		sources[path] = strings.Replace(sources[path], before, after, 1)
	}
	overlay := struct{ Replace map[string]string }{make(map[string]string)}
	for path, text := range sources {
		file := filepath.Join(dir, strings.ReplaceAll(path, string(filepath.Separator), "_"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay.Replace[path] = file
	}
	data, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	list, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant.test")
	if err := os.WriteFile(list, data, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", list, "-o", binary, "./"+pkg) //nolint:gosec // of this module
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the mutant does not build: %v\n%s", err, out)
	}
	return binary
}

// moduleRoot is where go.mod is, above the directory in which tests run.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("there is no go.mod above the test's directory")
		}
		dir = up
	}
}
