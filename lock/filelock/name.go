package filelock

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

const (
	extension   = ".lock"
	longestName = 255 // that file systems take
)

// fileName returns the name of the file for key. It maps keys to names one-to-one, and
// so that no two names are the same to a file system that ignores case or rewrites
// accents. If the name would be too long it is that of a hash, and stored in the file is
// the whole key, to be compared.
func fileName(key string) string {
	var b strings.Builder
	for i := range len(key) {
		if c := key[i]; plain(c) && (i > 0 || c != '.') {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	if b.Len()+len(extension) > longestName {
		sum := sha256.Sum256([]byte(key))
		return "~" + hex.EncodeToString(sum[:]) + extension // no other name has a tilde
	}
	return b.String() + extension
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '.' || c == '-' || c == '_'
}
