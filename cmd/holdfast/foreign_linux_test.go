package main

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

// TestLossOfAnotherUser: what holdfast may not signal, as "sudo" under it, it does not
// claim to stop; it still waits for the end.
func TestLossOfAnotherUser(t *testing.T) {
	setpriv, err := exec.LookPath("setpriv")
	if os.Getuid() != 0 || err != nil {
		t.Skip("only root can be without the right to signal others, by setpriv(1)")
	}
	everywhere(t, func(t *testing.T, s *site) {
		cmd := s.runCommand([]string{"--ttl", "4s"}, setpriv, "--reuid", "65534", "--clear-groups", "sh", "-c", "echo ready; sleep 3")
		cmd.Args = slices.Concat([]string{setpriv, "--bounding-set", "-kill", cmd.Path}, cmd.Args[1:])
		cmd.Path = setpriv
		p := start(t, cmd)
		awaitLine(t, p.out)
		s.take()
		p.want(exitLost, "cannot be stopped")
	})
}
