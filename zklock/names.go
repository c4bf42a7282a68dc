package zklock

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/lock"
)

const defaultRoot = "/holdfast"

// checkRoot refuses what is no path of a node, and what ZooKeeper keeps to itself.
func checkRoot(root string) error {
	bad := func(why string) error {
		return fmt.Errorf("%w: the root %q %s; give the path of a node, as in %s", lock.ErrInvalid, root, why, defaultRoot)
	}
	if !strings.HasPrefix(root, "/") {
		return bad("does not begin with a slash")
	}
	for i, part := range strings.Split(root[1:], "/") {
		switch {
		case part == "":
			return bad("has an empty part")
		case part == ".", part == "..", strings.ContainsFunc(part, forbidden):
			return bad("has a part that ZooKeeper does not allow")
		case i == 0 && part == "zookeeper":
			return bad("is where ZooKeeper keeps its own data")
		}
	}
	return nil
}

// The directories below the root, and the nodes in them. A lock's node has as children
// those who hold the lock and those who wait.
func locksDir(root string) string             { return root + "/lock" }
func sessionsDir(root string) string          { return root + "/session" }
func lockNode(root, key string) string        { return locksDir(root) + "/" + escape(key) }
func sessionNode(root, session string) string { return sessionsDir(root) + "/" + session }

// sessionText is a session's ID in names of nodes.
func sessionText(s int64) string { return fmt.Sprintf("%016x", uint64(s)) }

// escape maps keys to names of nodes one-to-one, and leaves alone what can be read.
func escape(key string) string {
	if key == "." || key == ".." {
		return strings.Replace(key, ".", "%2E", 1)
	}
	if !strings.ContainsFunc(key, special) {
		return key
	}
	var b strings.Builder
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		char := key[i : i+size]
		i += size
		if !special(r) {
			b.WriteString(char)
			continue
		}
		for _, c := range []byte(char) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

// special says whether r must be escaped. A byte that is not UTF-8 comes as RuneError.
func special(r rune) bool { return r == '%' || forbidden(r) }

// forbidden says whether r must not be in a name. ZooKeeper allows few characters beyond
// the surrogates: what is there is escaped altogether.
func forbidden(r rune) bool {
	const surrogates = 0xD800
	return r == '/' || r >= surrogates || unicode.IsControl(r)
}

const (
	idLen      = 32 // of a request, 128 bits in hexadecimal
	sessionLen = 16 // 64 bits
	prefixLen  = len("write-") + idLen + len("-") + sessionLen + len("-")
	seqLen     = 10 // at least
)

// lastSequence is where a lock's node is made anew. ZooKeeper numbers children with 31
// bits, and repeats itself after the last (ZOOKEEPER-2944).
var lastSequence int32 = 1<<31 - 1<<20

// member is a node in the line for a lock, as its name tells:
//
//	write-0123456789abcdef0123456789abcdef-0100a1b2c3d40000-0000000042
//
// who it is (the ID of the request), whose (the session), and where in the line (the
// number that the server has given it).
type member struct {
	name    string
	shared  bool
	id      string
	session string
	seq     int32
}

// memberPrefix is the name up to the number.
func memberPrefix(shared bool, id, session string) string {
	kind := "write-"
	if shared {
		kind = "read-"
	}
	return kind + id + "-" + session + "-"
}

// parseMember reads a name. false: it is none of ours.
func parseMember(name string) (m member, ok bool) {
	m = member{name: name}
	rest, ok := strings.CutPrefix(name, "write-")
	if !ok {
		if rest, ok = strings.CutPrefix(name, "read-"); !ok {
			return m, false
		}
		m.shared = true
	}
	if len(rest) < idLen+1+sessionLen+1+seqLen || rest[idLen] != '-' || rest[idLen+1+sessionLen] != '-' {
		return m, false
	}
	m.id, m.session = rest[:idLen], rest[idLen+1:idLen+1+sessionLen]
	m.seq, ok = parseSeq(rest[idLen+1+sessionLen+1:])
	return m, ok && isHex(m.id) && isHex(m.session)
}

// parseSeq reads a number as ZooKeeper writes it: with zeros in front, and with its sign not
// shorter than seqLen.
func parseSeq(text string) (int32, bool) {
	n, err := strconv.ParseInt(text, 10, 32)
	longest := seqLen
	if n < -999_999_999 {
		longest++
	}
	return int32(n), err == nil && len(text) == longest && text[0] != '+'
}

func isHex(s string) bool { return strings.Trim(s, "0123456789abcdef") == "" }

// before says whether a is in front of b: also where the numbers have passed 2^31 and gone
// on below zero, as long as those in line are not half of all numbers apart.
func before(a, b member) bool { return a.compare(b) < 0 }

func (m member) compare(o member) int {
	if m.seq != o.seq {
		return cmp.Compare(m.seq-o.seq, 0) // as differences wrap
	}
	return strings.Compare(m.name, o.name)
}

// blockers returns how many of the children of a lock's node keep m from the lock, and the
// name of the one that is next to m: of a shared one, those in front of it that are exclusive;
// of another, all that are in front. Children that are not members do not count.
func blockers(names []string, m member) (n int, next string) {
	var nearest member
	for _, name := range names {
		o, ok := parseMember(name)
		if !ok || o.name == m.name || !before(o, m) || m.shared && o.shared {
			continue
		}
		if n == 0 || before(nearest, o) {
			nearest = o
		}
		n++
	}
	return n, nearest.name
}
