//go:build unix

package main

import (
	"sync"
	"syscall"
)

// strays are the processes that descend from the program, and have left its group: a
// shell with job control and timeout(1) give their commands groups of their own. What
// has lost all its ancestors before anyone looked is not among them: a daemon.
type strays struct {
	mu    sync.Mutex
	known map[proc]bool
}

// proc is a process that was seen. Its number alone may be another's by now.
type proc struct {
	pid   int
	start string // of the process, in ticks since the machine's
}

// look notes who is there now, and says whether anyone is.
func (s *strays) look(c *child) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	table := processes()
	found := make(map[proc]bool)
	for _, e := range table {
		if e.pid != c.pid && e.group != c.pid && s.belongs(e, table, c) { // signal reaches the others
			found[e.proc] = true
		}
	}
	s.known = found
	return len(found) > 0
}

// belongs says whether e, or one of its ancestors, is the program, of its group, or one
// that was known to descend from it. The number of the program's group is no stranger's
// as long as the program has not been waited for, or one of the group is there.
func (s *strays) belongs(e entry, table map[int]entry, c *child) bool {
	for range len(table) { // no more ancestors than that, even in a table that changed meanwhile
		if e.pid == syscall.Getpid() {
			return false
		}
		if e.group == c.pid || e.pid == c.pid && !c.ended.Load() || s.known[e.proc] {
			return true
		}
		parent, ok := table[e.parent]
		if !ok {
			return false
		}
		e = parent
	}
	return false
}

func (s *strays) signal(sig syscall.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.known {
		_ = syscall.Kill(p.pid, sig)
	}
}

// entry is what the table of the system's processes has of one.
type entry struct {
	proc
	parent int
	group  int
}
