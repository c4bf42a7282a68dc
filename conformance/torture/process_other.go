//go:build !linux

package torture

import "os/exec"

// dieWithUs: a child that is not stopped ends when its input does.
func dieWithUs(*exec.Cmd) {}
