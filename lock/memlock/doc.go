// Package memlock keeps locks in the memory of one process.
//
// It is for tests: a [Server] stands for a lock server, grants what a real one
// would, and fails on request, so that a program's own handling of contention,
// loss and silence can be tested in milliseconds, also under testing/synctest. It
// is also the reference for what backends promise. It is not for production: locks
// between processes need a server, and goroutines need only sync.Mutex.
//
//	server := memlock.NewServer()
//	locker, err := server.Locker(lock.Config{TTL: time.Second})
//	...
//	server.Revoke("order-42")      // the lock is gone: the holder's Lost closes
//	heal := server.Stall(locker)   // no byte passes: the holder's lease runs out
//
// A server grants in one of two ways, which between them stand for all real ones.
// By default all grants of a Locker live on one session, and waiters queue at the
// server, as with etcd or ZooKeeper: FIFO, and a lost session loses all of them.
// With [OwnLeases] each grant has a lease of its own and waiters poll, as with Redis.
//
// It promises Fencing, SharedMode and Leased, and FIFO where waiters queue. Its
// tokens grow over all keys and begin again with the process.
//
// In a URL, mem:name is a server that is shared by all who name it, in this process.
package memlock
