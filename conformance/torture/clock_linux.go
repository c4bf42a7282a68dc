package torture

import (
	"syscall"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of linux/time.h: it counts suspend, is never stepped,
// and is the same for all processes of the machine.
const clockBoottime = 7

// now returns the present moment in nanoseconds. Stamps of different processes compare.
func now() int64 {
	var ts syscall.Timespec
	// Every Linux since 2.6.39 has this clock, and the call has no other way to fail.
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Nano()
}
