//go:build unix

package main

import (
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// waitEnders end the wait for the lock.
var waitEnders = []os.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM}

// forwarded go on to the program, besides waitEnders and those of the platform.
// Not among them: what cannot be caught (KILL, STOP), what is about holdfast's own
// doings (CHLD, PIPE, TTIN, TTOU, faults, limits), and what the Go runtime uses
// for itself (URG, PROF).
var forwarded = []os.Signal{
	syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGALRM, syscall.SIGABRT,
	syscall.SIGIO, syscall.SIGCONT, syscall.SIGTSTP,
}

// listen catches, for the rest of the process's life, every signal that concerns
// the program. Signals that holdfast was told to ignore (nohup, "&" in a script)
// it leaves alone: the program inherits that too.
func listen() chan os.Signal {
	c := make(chan os.Signal, 64) // os/signal drops what finds no room
	for _, sig := range slices.Concat(waitEnders, forwarded, platformSignals()) {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	// Caught, so that a message to a closed stderr cannot end holdfast; not
	// ignored, because the program would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return c
}

func endsWait(sig os.Signal) bool { return slices.Contains(waitEnders, sig) }
