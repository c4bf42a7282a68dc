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
// the program. HUP and INT, if holdfast was told to ignore them (nohup, "&" in a
// script), it leaves alone: the program inherits that too. Of others nobody can say any
// more whether they were ignored: the Go runtime has put handlers in their places.
func listen() chan os.Signal {
	c := make(chan os.Signal, 64) // os/signal drops what finds no room
	catch(c, slices.Concat(waitEnders, forwarded, platformSignals()))
	// Caught, so that a message to a closed stderr cannot end holdfast; not
	// ignored, because the program would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	return c
}

// hurry catches the first of the signals to end.
func hurry() chan os.Signal {
	c := make(chan os.Signal, 1)
	catch(c, waitEnders)
	return c
}

func catch(c chan os.Signal, sigs []os.Signal) {
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

func endsWait(sig os.Signal) bool { return slices.Contains(waitEnders, sig) }
