//go:build unix

// Command holdfast runs any program while it holds a distributed lock:
//
//	holdfast run nightly-report -- ./report.sh --all
//	holdfast run --url redis://localhost:6379 nightly-report -- ./report.sh --all
//
// It is as transparent as a wrapper can be: the program gets holdfast's own
// standard streams, arguments and environment untouched, receives the signals
// that holdfast receives, and its exit code becomes holdfast's. "holdfast run
// --help" tells what is added to that, and the exit codes.
package main

import (
	"os"

	"github.com/holdfast-go/holdfast/backends"
	"github.com/redis/go-redis/v9/logging"
)

func main() {
	// The SDK writes to stderr on its own, and what it writes is in the error that
	// this command reports. Its logger is global: only a program may turn it off.
	logging.Disable()
	os.Exit(execute(os.Args[1:], backends.Open))
}
