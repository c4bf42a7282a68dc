// Package etcdlock keeps locks in etcd, 3.5 or later; it is tested with 3.7.
//
//	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"localhost:2379"}})
//	...
//	locker, err := etcdlock.New(client, etcdlock.Config{})
//	if err != nil {
//		return err
//	}
//	defer locker.Close() // the client stays open
//	err = lock.Do(ctx, locker, "nightly-report", report)
//
// A program that is told by a URL where to lock imports the package for its schemes:
//
//	locker, err := lock.Open(ctx, "etcd://user:password@host1:2379,host2:2379/locks?ttl=10s")
//
// # URLs
//
//	etcd://user:password@host1,host2,host3/prefix
//	etcds://…?ca=file&cert=file&key=file   the same over TLS
//
// All but the scheme may be left out: the host is localhost then, the port 2379, the prefix
// /holdfast/, and nobody logs in. An IPv6 address is written in brackets, as in [::1]:2379. The
// path is the prefix, with its first slash: see [Config]. Over TLS, ca names a PEM file with the
// authorities to trust, for those of the system, and cert and key what this side shows of
// itself. Special characters in user, password and path are percent-encoded. The query takes the
// keys that all backends share, too: see [lock.Open]. Opening asks the server once: what it
// refuses fails at once, with the reason, and a server that cannot be reached is an error that
// matches [lock.ErrUnavailable].
//
// # What it promises
//
// [lock.Fencing], [lock.FIFO], [lock.SharedMode] and [lock.Leased]. A lock is a queue of keys,
// and the one that was created first holds it. All keys of a Locker are attached to one lease,
// which the engine renews; its deadline counts from before a renewal was sent, and by what the
// server granted. The token is the create revision of the holder's key. It grows over all keys
// of the cluster, over restarts and changes of the leader. A free lock takes one transaction, and a
// release one deletion.
//
// Two who share a lock, and had to wait for it, may be granted it in the other order than that in
// which they came: if the one whose key is at revision 20 is told first, the one at 10 comes after
// it, with the smaller token. A guard that had accepted the 20 would refuse it. An exclusive holder
// never stands between the two: its token is greater than both, or smaller than both. See
// [lock.Token] for what a guard does then.
//
// An outcome that is not known leaves nothing: each transaction that creates a key names the
// revision of a barrier, another key of the Locker's, and what is abandoned has the barrier put
// anew, so that a copy of it that comes late is refused. The name of a key is used again by the
// same lease alone, and not before it is known that nothing is under way that could delete it: so
// a release deletes no other's lock.
//
// # What it does not promise
//
// Early ends of a lease, none but these: an operator who revokes it, or deletes its keys, lets
// others in before the holder knows. Lost closes at once then, or, of a lock that was held for
// less than a fifth of a second, soon after. If the watch that would tell hangs on a connection
// that has died unnoticed, the second renewal after that finds it out: within two thirds of the TTL,
// and the time of a request. etcd before 3.4.31 and 3.5.13 may end leases early while a leader that
// was cut off believes that it still leads; let the resource check the token.
// And if the servers are told to keep checkpoints of leases, which they do not by default, a new
// leader may give one of more than five minutes less time than its last renewal had: leave that
// off, or let the TTL be five minutes or less.
//
// Tokens fall when a cluster is restored from a snapshot without a bump of its revision
// (etcdutl snapshot restore --bump-revision): give a [lock.Config.TokenBase] then, or use another
// prefix and fence anew.
//
// The TTL is in whole seconds, and not below what the server allows: see [Config]. A restart of
// the cluster, or a new leader, gives a dead holder its whole TTL once more.
//
// # Waiting
//
// Who waits watches the key before its own, so that a release wakes one, and looks at the queue
// before it takes its turn. Nobody polls, but where the server does not allow a watch; then all
// who wait look twice a second.
//
// A Locker that holds more than 64 locks for longer than a moment watches all deletions under
// its prefix. If thousands of short locks a second are released there, give them another.
//
// # What is at the server
//
// For the key k, the default prefix and a lease, as etcdctl writes it:
//
//	/holdfast/{k}/xLEASE   who holds k or waits for it: its ID, when it asked, and its owner
//	/holdfast/{k}/sLEASE   the same for one who shares it
//	/holdfast/{}/LEASE     the barrier of a Locker, if it has ever needed it
//
// A Locker with more than one key in a queue numbers them, as in sLEASE-1. In k, braces, percent
// signs, control characters and bytes that are not UTF-8 are percent-encoded. All of it goes with
// the lease. To free a lock by hand, delete its first key, or revoke its lease, which frees all
// that its Locker holds. What else is put under /holdfast/{k}/ keeps k taken.
//
// Inspect shows since when a lock is held only if its holder had not to wait, and the cluster was
// not compacted since.
//
// In the server's access control, the locks' user needs readwrite on the prefix:
//
//	etcdctl role grant-permission locks --prefix=true readwrite /holdfast/
//
// A user whose rights to a part of what it holds are taken away cannot renew any of it.
package etcdlock
