package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// dieWithUs has the kernel kill the child when the thread that starts it ends.
func dieWithUs(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
}

// awaitStopped returns when every thread of a child that was sent SIGSTOP has
// stopped: kill(2) returns earlier. If the child is dead it returns at once.
func awaitStopped(pid int) {
	const byPID = 1 // P_PID of waitid(2), which package syscall lacks
	for {
		// WNOWAIT leaves the report there for a second Pause.
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), 0, syscall.WSTOPPED|syscall.WNOWAIT, 0, 0)
		if !errors.Is(errno, syscall.EINTR) {
			return
		}
	}
}

// childrenOf returns the children of a process.
func childrenOf(pid int) []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		child, _ := strconv.Atoi(filepath.Base(dir))
		if _, parent, ok := stat(child); ok && parent == pid {
			pids = append(pids, child)
		}
	}
	return pids
}

// running says whether there is such a process that has not ended. One whose parent is
// dead may stay a zombie.
func running(pid int) bool {
	state, _, ok := stat(pid)
	return ok && state != "Z" && state != "X"
}

func stat(pid int) (state string, parent int, ok bool) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0, false
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // its name may have spaces
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}
