// Package otherprocess gives tests a Locker that lives in a process of its own: what
// holds between the goroutines of one process need not hold between processes, and only
// a process can be killed or stopped.
//
// The process is this same test binary, started again. TestMain hands over to it, and the
// backend of the URL must be imported:
//
//	func TestMain(m *testing.M) {
//		otherprocess.Serve()
//		os.Exit(m.Run())
//	}
//
// [Open] then takes what [lock.Open] takes. Between the Locker that it returns and the one
// in the process there are two pipes, and nothing that waits, tries again or remembers:
// whatever a test sees is what the Locker does. Deadlines and ends of contexts, options and
// events travel; of an error, its text, and which of the errors it matches that package lock
// and context name, and the cause of the end of its own context. Whether a lock is held is
// asked at the instant, and a loss is told as soon as it is known there.
//
// It works on Unix only.
package otherprocess
