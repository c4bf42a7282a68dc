//go:build unix && !linux

package process

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithUs can do nothing here: a test binary that is killed leaves its servers.
func dieWithUs(*exec.Cmd) {}

// awaitStopped relies on the signal to arrive before the next request does.
func awaitStopped(int) {}

// childrenOf returns the children of a process.
func childrenOf(pid int) []int {
	out, _ := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output() // an error if there are none
	var pids []int
	for field := range strings.FieldsSeq(string(out)) {
		if child, err := strconv.Atoi(field); err == nil {
			pids = append(pids, child)
		}
	}
	return pids
}

// running says whether there is such a process.
func running(pid int) bool { return syscall.Kill(pid, 0) == nil }
