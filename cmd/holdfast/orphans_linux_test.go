package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestOrphansAreWaitedFor: holdfast, as the first process of a container, is given the
// orphans there, and no zombie may be left of them.
func TestOrphansAreWaitedFor(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	everywhere(t, func(t *testing.T, s *site) {
		log := filepath.Join(t.TempDir(), "log")
		cmd := s.runCommand(nil, sh(`for i in 1 2 3; do (sh -c 'echo $$ >> "$1"' sh "$1" &); done; read line; exit 3`, log)...)
		cmd.Args = slices.Concat([]string{self, helperPrefix + "adopts", cmd.Path}, cmd.Args[1:])
		cmd.Path = self
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		p := start(t, cmd)
		eventually(t, "three orphans", func() bool { return strings.Count(read(t, log), "\n") == 3 })
		for pid := range strings.FieldsSeq(read(t, log)) {
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "no zombie", func() bool { return syscall.Kill(n, 0) == syscall.ESRCH })
		}
		_, _ = stdin.Write([]byte("\n"))
		p.want(3)
	})
}

func adoptOrphans() error {
	const prSetChildSubreaper = 36
	_, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
