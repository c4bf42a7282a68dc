//go:build unix && !linux

package main

import "syscall"

// attributes puts the program into a process group of its own. This system does
// not tell it when holdfast dies.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
