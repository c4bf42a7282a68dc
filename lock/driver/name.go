package driver

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/holdfast-go/holdfast/lock"
)

// BraceKey returns a key in braces, for the name of what is at a server. Braces, percent
// signs, control characters and bytes that are not UTF-8 are percent-encoded in it, and
// nothing else, so that it can be read. What follows a prefix that [CheckPrefix] accepts up
// to its closing brace is one key, whatever its text: no two pairs of prefix and key share a
// name, nor is the name of one the beginning of another's.
func BraceKey(key string) string { return "{" + escape(key) + "}" }

// CheckPrefix refuses a prefix that would break what BraceKey promises.
func CheckPrefix(prefix string) error {
	if strings.ContainsFunc(prefix, special) {
		return fmt.Errorf("%w: the prefix %q holds a brace, a percent sign, a control character or bytes that are not UTF-8",
			lock.ErrInvalid, prefix)
	}
	return nil
}

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
