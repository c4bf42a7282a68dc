package driver

import (
	"math"
	"time"
)

// Stamp is a moment on a clock that counts the time in which the machine is
// suspended, in nanoseconds. Only differences between Stamps of one process mean
// something.
type Stamp int64

// base is where Stamps count from inside a bubble of testing/synctest (they are far
// below zero there), and where no better clock is to be had.
var base = time.Now()

// Now returns the present moment. A driver reads it before it gives a request to
// its SDK: the server cannot have begun to count a lease earlier than that,
// however often the SDK sends the request again.
func Now() Stamp {
	t := time.Now()
	if inBubble(t) {
		return Stamp(t.Sub(base))
	}
	return now(t)
}

// inBubble says whether t is of a clock of testing/synctest: it has no monotonic
// reading then.
func inBubble(t time.Time) bool { return t == t.Round(0) }

// Add returns the moment d after s, or the last one there is.
func (s Stamp) Add(d time.Duration) Stamp {
	sum := s + Stamp(d)
	if d > 0 && sum < s {
		return math.MaxInt64
	}
	return sum
}

// Sub returns how long s is after u.
func (s Stamp) Sub(u Stamp) time.Duration { return time.Duration(s - u) }
