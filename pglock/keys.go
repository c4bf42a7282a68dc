package pglock

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/holdfast-go/holdfast/lock"
)

const defaultNamespace = "holdfast"

// name is how PostgreSQL knows a lock: it takes no text.
type name struct {
	key    string
	number int64 // of the lock
	flag   int64 // of the flag of those who wait for it alone
}

// nameOf returns the name of a key. A zero byte, which no namespace holds, keeps namespace
// and key apart.
func nameOf(namespace, key string) name {
	sum := sha256.Sum256([]byte(namespace + "\x00" + key))
	return name{key, int64(binary.BigEndian.Uint64(sum[:8])), int64(binary.BigEndian.Uint64(sum[8:16]))}
}

// number returns the number of a key's lock alone.
func number(namespace, key string) int64 { return nameOf(namespace, key).number }

func checkNamespace(namespace string) error {
	if strings.ContainsRune(namespace, 0) {
		return fmt.Errorf("%w: the namespace %q holds a zero byte", lock.ErrInvalid, namespace)
	}
	return nil
}
