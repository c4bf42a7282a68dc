package driver_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func TestBraceKey(t *testing.T) {
	for key, want := range map[string]string{
		"orders/42":          "{orders/42}",
		"日本 ü":               "{日本 ü}",
		"{a}":                "{%7Ba%7D}",
		"%7Ba%7D":            "{%257Ba%257D}",
		"two\nlines\x00":     "{two%0Alines%00}",
		"\xff\xfe":           "{%FF%FE}",
		"\xef\xbf\xbd":       "{\xef\xbf\xbd}",
		"\u0085":             "{%C2%85}",
		"a\xffb\xef\xbf\xbd": "{a%FFb\xef\xbf\xbd}",
	} {
		if got := driver.BraceKey(key); got != want {
			t.Errorf("BraceKey(%q) = %q, want %q", key, got, want)
		}
	}
}

// No name begins another, so that a server that takes ranges of names mixes no two locks.
func TestBraceKeysAreApart(t *testing.T) {
	keys := []string{"a", "b", "a/", "/a", "a/b", "a//b", "a}", "{a", "{a}", "a%", "a%7D", "}", "{", "{}", "/", "//", " ", "a ", "\x00", "a\x00", "\xff", "%FF"}
	for _, one := range keys {
		for _, other := range keys {
			if one != other && strings.HasPrefix(driver.BraceKey(one), driver.BraceKey(other)) {
				t.Errorf("the name of %q begins with that of %q", one, other)
			}
		}
	}
}

func TestCheckPrefix(t *testing.T) {
	for _, prefix := range []string{"", "holdfast", "/a/b/", "日本"} {
		if err := driver.CheckPrefix(prefix); err != nil {
			t.Errorf("CheckPrefix(%q): %v", prefix, err)
		}
	}
	for _, prefix := range []string{"{", "a}", "50%", "a\n", "\xff"} {
		if err := driver.CheckPrefix(prefix); !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("CheckPrefix(%q): %v, want ErrInvalid", prefix, err)
		}
	}
}
