package filelock_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/lock/filelock"
)

func TestFileNames(t *testing.T) {
	for key, name := range map[string]string{
		"nightly":                "nightly.lock",
		"a.b-c_9":                "a.b-c_9.lock",
		"Nightly":                "%4eightly.lock",
		".":                      "%2e.lock",
		"..":                     "%2e..lock",
		".hidden":                "%2ehidden.lock",
		"a/b":                    "a%2fb.lock",
		"a%2fb":                  "a%252fb.lock",
		"~":                      "%7e.lock",
		" \n\x00\xff":            "%20%0a%00%ff.lock",
		"é":                      "%c3%a9.lock",
		strings.Repeat("x", 250): strings.Repeat("x", 250) + ".lock",
	} {
		got := filelock.FileName(key)
		if got != name {
			t.Errorf("%q is called %q, want %q", key, got, name)
		}
	}
	if got := filelock.FileName(strings.Repeat("x", 251)); len(got) != 1+64+len(".lock") || got[0] != '~' {
		t.Errorf("a long key is called %q, want a hash", got)
	}
}

// No two keys share a name, whether a file system looks at case or not.
func TestFileNamesAreDistinct(t *testing.T) {
	const alphabet = "aA.%~/2eE\x00\xc3\xa9 "
	seen := make(map[string]string)
	for range 200_000 {
		key := make([]byte, 1+rand.N(8))
		if rand.N(100) == 0 {
			key = make([]byte, 80+rand.N(200))
		}
		for i := range key {
			key[i] = alphabet[rand.N(len(alphabet))]
		}
		name := strings.ToLower(filelock.FileName(string(key)))
		if other, ok := seen[name]; ok && other != string(key) {
			t.Fatalf("%q and %q are both called %q", key, other, name)
		}
		seen[name] = string(key)
		if len(name) > 255 || strings.ContainsAny(name, "/\x00") || name[0] == '.' {
			t.Fatalf("%q is called %q", key, name)
		}
	}
}
