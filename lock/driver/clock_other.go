//go:build !linux

package driver

import "time"

// countsSuspend says whether Stamps count the time in which the machine is
// suspended.
const countsSuspend = false

func now(t time.Time) Stamp { return Stamp(t.Sub(base)) }
