package redislock

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/lock"
)

const defaultPrefix = "holdfast"

// checkPrefix refuses a prefix that would break what lockName promises.
func checkPrefix(prefix string) error {
	if strings.ContainsFunc(prefix, special) {
		return fmt.Errorf("%w: the prefix %q holds a brace, a percent sign, a control character or bytes that are not UTF-8",
			lock.ErrInvalid, prefix)
	}
	return nil
}

// lockName returns the name of a lock at the server. A cluster hashes, of a name, what
// is between its first opening brace and the next closing one, unless that is
// nothing. Neither a prefix nor an escaped key holds a brace, and no key is empty: so
// that is the key, whatever its text, and all names of one lock share a slot. Nor can
// two pairs of prefix and key share a name.
func lockName(prefix, key string) string { return prefix + ":{" + escape(key) + "}" }

// The names of what else belongs to the lock of that name.
func counterName(lock string) string       { return lock + ":token" }
func turnName(lock string) string          { return lock + ":turn" }
func queueName(lock string) string         { return lock + ":queue" }
func askedName(lock string) string         { return lock + ":asked" }
func tombstoneName(lock, id string) string { return lock + ":void:" + id }

// escape maps keys to text one-to-one, and leaves alone what can be read.
func escape(key string) string {
	if !strings.ContainsFunc(key, special) {
		return key
	}
	var b strings.Builder
	for i := 0; i < len(key); {
		r, size := utf8.DecodeRuneInString(key[i:])
		char := key[i : i+size]
		i += size
		if !special(r) || char == string(utf8.RuneError) { // itself, not what stands for a bad byte
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
func special(r rune) bool {
	return r == '{' || r == '}' || r == '%' || r == utf8.RuneError || unicode.IsControl(r)
}
