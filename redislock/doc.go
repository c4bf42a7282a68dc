// Package redislock keeps locks in Redis, 6.2 or later, or in a server that speaks
// its language.
//
//	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
//	locker, err := redislock.New(client, redislock.Config{})
//	if err != nil {
//		return err
//	}
//	defer locker.Close() // the client stays open
//	err = lock.Do(ctx, locker, "nightly-report", report)
//
// A program that is told by a URL where to lock imports the package for its schemes:
//
//	locker, err := lock.Open(ctx, "redis://:password@localhost:6379/0?ttl=10s")
//
// # URLs
//
//	redis://user:password@host:port/database?prefix=text&max_ttl=duration
//	rediss://…   the same over TLS, with the certificate authorities of the system
//
// All but the scheme may be left out: the port is 6379 then, the database 0, and the
// rest as in [Config]. Special characters in user and password are
// percent-encoded. The query takes the keys that all backends share, too: see
// [lock.Open]. Opening asks the server once: what it refuses fails at once, and a
// server that cannot be reached is an error that matches [lock.ErrUnavailable]. For
// all else (certificates, a Sentinel, a cluster, a socket) make a client, and give
// it to [New].
//
// # What it promises
//
// [lock.Fencing] and [lock.Leased]. A lock is one string with an expiry. It is
// taken, renewed and released by scripts that compare the random ID of the holder.
// The script that takes it mints its token as well: one more than the last, and at
// least the server's clock in microseconds, so that tokens go on rising when the
// server has lost its data.
//
// # What it does not promise
//
// Failover: replication is asynchronous. A replica that is promoted may not know of
// a lock that was granted a moment ago, and a server that restarts without an
// append-only file knows of none. Then there can be two holders until the next
// renewal of the first, a third of the TTL and one attempt later at most. The second
// has the greater token: let the resource check it. Against restarts there is
// [Config.MaxTTL]; a promotion it does not notice.
//
// The server's clock: Redis ends leases by its wall clock. A step forward ends them
// early, with no warning to the holder. A step back, together with a loss of data,
// lets tokens fall. Have that clock slewed and not stepped, as chrony and ntpd do
// when they have started.
//
// Eviction: with any other maxmemory-policy than noeviction the server may drop a
// lock that is held, or its counter. [lock.Open] looks, and tells by an event of the
// kind [lock.Warning].
//
// Order: whoever asks at the right moment gets the lock. Usually that is the one who has
// waited longest: see below.
//
// # Waiting
//
// Who waits stands in a queue at the server. A release calls the first, over a channel
// of its Locker's own, and keeps the lock for it: for 5 ms and the time of the way, or
// longer (at most 100 ms) if it has come too late before. Then its place is not lost. A
// Locker has one connection for that, from when its first waiter has to wait until it is
// closed.
//
// No waiter depends on being called: each asks again when the lease that it waits for
// should be over, and at least about once a second. So a lock whose holder is killed
// goes to another when its lease is over, and a waiter that dies costs the others its
// head start. If the server does not let a Locker subscribe, as [lock.Warning] tells
// then, its waiters ask again and again at growing intervals.
//
// TryAcquire waits while the lock is only kept, and ErrHeld says that somebody has taken
// it; of a wait that ends, it may also say that another was called. Inspect counts who
// has asked in the last five seconds.
//
// # What is at the server
//
// For the key k, and the default prefix:
//
//	holdfast:{k}          the lock: ID, token, time and owner of its holder
//	holdfast:{k}:token    the last token, for a day after its use
//	holdfast:{k}:void:ID  for two TTLs after an attempt whose answer was lost
//	holdfast:{k}:queue    who waits, in order, for a minute after the last has asked
//	holdfast:{k}:asked    when each of them has asked
//	holdfast:{k}:turn     for milliseconds after a release: who is called
//	holdfast:wake:ID      the channel of a Locker whose waiters are called
//
// In k, braces, percent signs, control characters and bytes that are not UTF-8 are
// percent-encoded. The braces around it keep what belongs to one lock on one node of
// a cluster. In the server's access control, the locks' user needs
//
//	~holdfast:* &holdfast:wake:*
//	+eval +evalsha +get +mget +set +del +exists +pexpire +pttl +time +ping
//	+zadd +zrem +zrange +zrangebyscore +zscore +zcount +publish +subscribe
//
// and, for the warning of evictions and for MaxTTL, +info; a ClusterClient needs
// +cluster|slots besides.
package redislock
