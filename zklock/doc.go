// Package zklock keeps locks in ZooKeeper, 3.5 or later. It is tested with 3.8.
//
//	locker, err := zklock.New([]string{"zk1", "zk2", "zk3"}, zklock.Config{Tick: 2 * time.Second})
//	if err != nil {
//		return err
//	}
//	defer locker.Close()
//	err = lock.Do(ctx, locker, "nightly-report", report)
//
// A program that is told by a URL where to lock imports the package for its scheme:
//
//	locker, err := lock.Open(ctx, "zk://user:password@zk1:2181,zk2:2181,zk3:2181/locks?ttl=15s&tick=2s")
//
// # URLs
//
//	zk://user:password@host1:2181,host2:2181/root?tick=duration
//
// All but the scheme may be left out: the host is localhost then, the port 2181, and the rest
// as in [Config]. An IPv6 address is written in brackets, as in [::1]:2181. User and password are
// credentials of the scheme "digest", with special characters percent-encoded. The query
// takes the keys that all backends share, too: see [lock.Open]. Opening makes a session: what
// the servers refuse fails at once, and servers that cannot be reached are an error that
// matches [lock.ErrUnavailable]. For all else (other credentials, ACLs, TLS) there is [New].
//
// # What it promises
//
// [lock.Fencing], [lock.FIFO], [lock.SharedMode] and [lock.Leased].
//
// Whoever wants a lock gets an ephemeral node with a number, in line behind all who came
// before, and watches the one in front: of a shared one, the next exclusive one in front. No
// node is watched by more than the next, so a release wakes one waiter, or those who share. A
// node's name tells the request and the session, so that one that was made by a request whose
// answer was lost is found again: it is that request's place in line, or is removed if nobody
// waits for it any more. Before every grant the node has proved to be there, and first.
//
// The token is the number of the transaction that made the node (its czxid), which grows over
// changes of the leader and restarts. Of shared holders, the one whose turn comes first may
// have the greater token, if the other stood before it in line.
//
// All locks of a Locker live and die with its session. When the servers say that it has ended,
// all are lost at once, and the Locker goes on with a new one.
//
// An attempt that does not wait is in line, too, until it has left again: of two at one moment
// both may find the lock held, the one by the other, and so may a shared one by an exclusive
// one beside it, where only shared ones hold.
//
// # What proves a session
//
// A follower that is cut off from its leader goes on answering pings and reads, for longer
// than the leader keeps the session. So heartbeats are writes, which the leader must have
// agreed to, and are counted such that the leader must have heard of the session: the
// argument is in heartbeat.go. Of the session's timeout, which is the TTL, a quarter and half
// a tick are taken off, besides the margins for clocks: that is the longest that Valid says,
// and half of it the limit for a [lock.Margin]. Tell the servers' tickTime with the query key
// tick, or [Config]: without, 3 s is assumed, or half of the TTL if that is less.
//
// A server that does not answer a heartbeat is left for the next one in the list, and so is
// one that accepts connections and stays mute: the session survives both, if another of the
// servers can be reached in time.
//
// # What it does not promise
//
// The TTL is the timeout of a session, and the servers bound that: to 2 and 20 ticks, if they
// are not told otherwise. One that they would change is refused. All of them must have the same
// bounds, also while their configuration is being changed: a server with a lower one would have
// the leader end a session early that comes to it.
//
// Where clients connect to observers that have their data from another follower
// (observerMasterPort), signs of life take a tick longer to the leader: give twice the tickTime
// as the tick.
//
// A lock that somebody deletes is free at once. Its holder is told at once, too, if it has
// held the lock for longer than a third of the term, and else then.
//
// Tokens and locks are as safe as the servers' data. From a snapshot that is restored, or a
// data directory that was emptied, tokens start low again: see [lock.Config.TokenBase].
//
// A Locker holds any number of locks, on a further session for each half megabyte of paths
// (some five thousand locks): of a session with very many nodes a server writes a record, when
// it ends, that it cannot read again (ZOOKEEPER-4306).
//
// # What is at the servers
//
// For the key k, and the default root:
//
//	/holdfast/lock/k                               a container; its data are the key
//	/holdfast/lock/k/write-REQUEST-SESSION-NUMBER  in line for it; its data are the owner
//	/holdfast/lock/k/read-REQUEST-SESSION-NUMBER   the same, shared
//	/holdfast/session/SESSION                      for heartbeats
//
// In k, slashes, percent signs, control characters, bytes that are not UTF-8 and characters
// beyond U+D7FF are percent-encoded, and so is the first dot of "." and "..". Other children
// of a lock's node are ignored, and left alone. The server removes the container when it has
// been empty for a minute or so. Its numbers would run out after 2^31 waiters without a pause:
// then it is made anew, for which everybody in line has to be served first.
//
// Users of the locks need all permissions but admin on these nodes. They are given to the
// credentials in the URL or the [Config]; without any, everybody has them.
package zklock
