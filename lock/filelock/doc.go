// Package filelock keeps locks in files of a directory, for the processes of one
// machine, with no server. The kernel holds them, by flock(2), on Linux and macOS.
//
//	locker, err := filelock.New(filelock.Config{Dir: "/var/lib/app/locks"})
//	...
//	locker, err := lock.Open(ctx, "file:///var/lib/app/locks")
//
// # What it promises
//
// [lock.Fencing] and [lock.Leased]. The kernel frees a lock when its process ends, in
// whatever way, and not before: there is no lease that could end under a holder that was
// stopped or suspended. What the TTL bounds here is how soon a holder learns that somebody
// has removed its file: after a third of it.
//
// Tokens are written and synced to the disk before a lock is granted. They go on rising
// over crashes and power failures; and, as they are at least the clock's time in
// microseconds, when a file was removed, unless the clock was set back.
//
// # What it does not promise
//
// Other machines: on network file systems, flock may exclude only the processes of one
// machine, or nobody. Directories on those that are known are refused. So are those on
// FUSE, of which nobody knows. Containers share locks if they share the directory.
//
// Removal: who removes a file, or puts another in its place, lets a second holder in
// before the first is told; no [lock.Margin] gives notice of it. Locks that nobody uses
// are files of some 20 KiB; remove them only while nobody can want them.
//
// Strangers: whoever may read a lock's file can lock it, with flock(1) say, and keep all
// others out. The directory's permissions, and the umask of who makes the files, say who may.
//
// Order: the kernel lets in whom it likes, as a rule who has waited longest. A wait costs
// a thread. Of more than 64 files that a process waits for, the others are asked for
// again and again, at growing intervals.
//
// # What is in the directory
//
// For the key k, k.lock. Of other keys, all but lower-case letters, digits, dots, hyphens
// and underscores is percent-encoded, and so is a dot in front, so that keys differ on
// file systems that ignore case or rewrite accents. A name too long for a file is ~ and
// the key's SHA-256. The files are text: their tokens, key and holder, for
// [lock.Locker.Inspect].
package filelock
