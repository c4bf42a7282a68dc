package lock

import (
	"errors"
	"fmt"
	"strings"
)

// Features are the promises that differ between backends.
type Features uint

const (
	// Fencing: every grant has a [Token].
	Fencing Features = 1 << iota
	// FIFO: waiters are served in the order in which they came to the server. Of
	// several waiters inside one Locker only the first is at the server.
	FIFO
	// SharedMode: the option [Shared] is available.
	SharedMode
	// Leased: Lost closes before anyone else can be granted the key, under the
	// assumptions of the package comment.
	Leased
)

var featureNames = []struct {
	bit  Features
	name string
}{
	{Fencing, "fencing"},
	{FIFO, "fifo"},
	{SharedMode, "shared"},
	{Leased, "leased"},
}

// String returns the names of the features, separated by commas, as a URL's
// "require" takes them.
func (f Features) String() string {
	var names []string
	for _, n := range featureNames {
		if f&n.bit != 0 {
			names = append(names, n.name)
			f &^= n.bit
		}
	}
	if f != 0 {
		names = append(names, fmt.Sprintf("%#x", uint(f)))
	}
	return strings.Join(names, ",")
}

// ParseFeatures reads what [Features.String] writes. Its error matches
// [ErrInvalid] and lists the known names.
func ParseFeatures(s string) (Features, error) {
	var f Features
	for name := range strings.SplitSeq(s, ",") {
		bit, ok := featureByName(strings.TrimSpace(name))
		if !ok {
			return 0, fmt.Errorf("%w: unknown feature %q (known: fencing, fifo, shared, leased)", ErrInvalid, name)
		}
		f |= bit
	}
	return f, nil
}

func featureByName(name string) (Features, bool) {
	for _, n := range featureNames {
		if n.name == name {
			return n.bit, true
		}
	}
	return 0, false
}

// Require returns nil if l has all features of want. Call it at start-up: its
// error names what is missing and wraps [errors.ErrUnsupported].
func Require(l Locker, want Features) error {
	if missing := want &^ l.Features(); missing != 0 {
		return fmt.Errorf("holdfast: this backend does not promise %s: %w", missing, errors.ErrUnsupported)
	}
	return nil
}
