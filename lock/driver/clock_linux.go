package driver

import (
	"syscall"
	"time"
	"unsafe"
)

// countsSuspend says whether Stamps count the time in which the machine is
// suspended. Go's own timers and time.Since do not (golang.org/issue/24595).
const countsSuspend = true

// clockBoottime is CLOCK_BOOTTIME of linux/time.h, which package syscall does not
// name: CLOCK_MONOTONIC, which Go uses, and the time spent in suspend.
const clockBoottime = 7

func now(time.Time) Stamp {
	var ts syscall.Timespec
	// Every Linux since 2.6.39 has this clock, and the call has no other way to fail.
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return Stamp(ts.Nano())
}
