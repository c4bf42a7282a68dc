//go:build !linux

package torture

import "time"

// now returns the present moment in nanoseconds. Stamps of different processes must
// compare, for which the standard library has only the wall clock here: do not set it
// during a run.
func now() int64 { return time.Now().UnixNano() }
