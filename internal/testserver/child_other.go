//go:build unix && !linux

package testserver

import "os/exec"

// dieWithUs can do nothing here: a test binary that is killed leaves its servers.
func dieWithUs(*exec.Cmd) {}

// awaitStopped relies on the signal to arrive before the next request does.
func awaitStopped(int) {}
