package zklock_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/zklock"
)

// Keys map to names one-to-one, and every name is one that ZooKeeper allows.
func TestEscape(t *testing.T) {
	keys := []string{
		"a", "/a", "a/", "//a", "a//b", "a/b", "a-b", "a%2Fb", ".", "..", "...", ".a", "%2E", "%2E.", "a/../b", "a/./b",
		"zookeeper", "/zookeeper", "file:///v/x", "\x00", "\x01", "\u007f", "\u009f", "\ud7ff", "\uf8ff", "\ufff0", "\uffff", "\U000F0000", "😀",
		"a b", "a\nb", "\xff\xfe", "\xc3", "é", "e\u0301", "日本", "lock-0000000001", " ", "%", "%%",
	}
	for range 20000 {
		key := make([]byte, 1+rand.N(8))
		for i := range key {
			key[i] = byte(rand.N(256))
		}
		keys = append(keys, string(key))
	}
	seen := make(map[string]string)
	for _, key := range keys {
		name := zklock.Escape(key)
		if other, ok := seen[name]; ok && other != key {
			t.Fatalf("%q and %q are both %q", key, other, name)
		}
		seen[name] = key
		if name == "" || name == "." || name == ".." || strings.ContainsFunc(name, func(r rune) bool {
			return r == '/' || r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0xd800
		}) {
			t.Fatalf("%q is %q, which is no name", key, name)
		}
	}
	if name := zklock.Escape("nightly-report 日本"); name != "nightly-report 日本" {
		t.Errorf("a key that could be read is %q", name)
	}
}

func TestParseMember(t *testing.T) {
	const id, session = "0123456789abcdef0123456789abcdef", "0100a1b2c3d40000"
	for _, seq := range []int32{0, 1, 999_999_999, math.MaxInt32, -1, -999_999_999, -1_000_000_000, math.MinInt32} {
		for _, kind := range []string{"read", "write"} {
			name := fmt.Sprintf("%s-%s-%s-%010d", kind, id, session, seq) // as ZooKeeper does
			m, ok := zklock.ParseMember(name)
			if !ok || m != (zklock.Member{Name: name, Shared: kind == "read", ID: id, Session: session, Seq: seq}) {
				t.Errorf("%q is read as %+v, %v", name, m, ok)
			}
		}
	}
	good := "write-" + id + "-" + session + "-"
	for _, name := range []string{
		"", "content", "a-b", "lock-", "x-lock-99999999999", "write-", good, good + "1", good + "00000000001", good + "99999999999",
		good + "+000000001", good + "000000000x", good + "-2147483649", good + "-0000000001", "Write-" + id + "-" + session + "-0000000001",
		"write-" + id[1:] + "-" + session + "-00000000001", "write-" + strings.ToUpper(id) + "-" + session + "-0000000001",
		"_c_" + id + "-lock-0000000001", good + "0000000001-0000000002", "read" + good[5:] + "０000000001",
	} {
		if m, ok := zklock.ParseMember(name); ok {
			t.Errorf("%q is read as %+v", name, m)
		}
	}
}

// The line goes on over 2^31, where the numbers turn negative.
func TestLine(t *testing.T) {
	for name, test := range map[string]struct {
		line  string // kinds and numbers, of which the last is asked about
		ahead int
		next  string
	}{
		"alone":             {"w1", 0, ""},
		"behind":            {"w1 w2 w3", 2, "w2"},
		"in front":          {"w9 w8 w7", 0, ""},
		"unsorted":          {"w5 w1 w4 w2 w9 w6", 4, "w5"},
		"over the end":      {"w2147483646 w2147483647 w-2147483648", 2, "w2147483647"},
		"before the end":    {"w-2147483648 w-2147483647 w2147483647", 0, ""},
		"below zero":        {"w-3 w-2 w-1", 2, "w-2"},
		"over zero":         {"w-2 w-1 w0", 2, "w-1"},
		"reader, readers":   {"r1 r2 r3", 0, ""},
		"reader, writer":    {"r1 w2 r3 r4", 1, "w2"},
		"reader, writers":   {"w1 r2 w3 r4 w9 r5", 2, "w3"},
		"writer, readers":   {"r1 r2 w3", 2, "r2"},
		"reader, end":       {"w2147483647 r-2147483648", 1, "w2147483647"},
		"reader in front":   {"w5 r4", 0, ""},
		"the same, by name": {"w1 w1", 1, "w1"},
	} {
		ahead, next := zklock.Blockers(strings.Fields(test.line))
		if ahead != test.ahead || next != test.next {
			t.Errorf("%s: in %q, %d are ahead, the next is %q; want %d, %q", name, test.line, ahead, next, test.ahead, test.next)
		}
	}
}
