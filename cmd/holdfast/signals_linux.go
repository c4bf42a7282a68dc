package main

import (
	"os"
	"syscall"
)

// platformSignals are forwarded too: power failure, and the real-time signals,
// by which some services are controlled. 32 to 34 belong to the C libraries.
func platformSignals() []os.Signal {
	const first, last = 35, 64
	sigs := []os.Signal{syscall.SIGPWR}
	for n := first; n <= last; n++ {
		sigs = append(sigs, syscall.Signal(n))
	}
	return sigs
}
