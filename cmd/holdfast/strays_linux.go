package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// processes returns all that run, by their numbers. Who has ended is not among them,
// even if nobody has waited for it.
func processes() map[int]entry {
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	table := make(map[int]entry, len(names))
	for _, name := range names {
		if stat, err := os.ReadFile(name); err == nil {
			if e, ok := parseStat(stat); ok {
				table[e.pid] = e
			}
		}
	}
	return table
}

// parseStat reads what proc_pid_stat(5) tells of a process that runs.
func parseStat(stat []byte) (e entry, ok bool) {
	number, _, _ := bytes.Cut(stat, []byte(" ("))
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // a name may contain anything
	const state, parent, group, start = 0, 1, 2, 19
	if len(fields) <= start || fields[state][0] == 'Z' || fields[state][0] == 'X' {
		return entry{}, false
	}
	e.pid, _ = strconv.Atoi(string(number))
	e.parent, _ = strconv.Atoi(string(fields[parent]))
	e.group, _ = strconv.Atoi(string(fields[group]))
	e.start = string(fields[start])
	return e, e.pid > 0
}
