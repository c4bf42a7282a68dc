package driver

import "time"

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
	if t == t.Round(0) { // no monotonic reading: the clock is the bubble's
		return Stamp(t.Sub(base))
	}
	return now(t)
}

// Add returns the moment d after s.
func (s Stamp) Add(d time.Duration) Stamp { return s + Stamp(d) }

// Sub returns how long s is after u.
func (s Stamp) Sub(u Stamp) time.Duration { return time.Duration(s - u) }
