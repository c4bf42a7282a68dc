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
//	redis://user:password@host:port/database?prefix=text
//	rediss://…   the same over TLS, with the certificate authorities of the system
//
// All but the scheme may be left out: the port is 6379 then, the database 0, and the
// prefix as in [Config]. Special characters in user and password are
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
// has the greater token: let the resource check it.
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
// Order: waiters ask again and again, at growing intervals, and who asks at the
// right moment gets the lock.
//
// # What is at the server
//
// For the key k, and the default prefix:
//
//	holdfast:{k}          the lock: ID, token, time and owner of its holder
//	holdfast:{k}:token    the last token, for a day after its use
//	holdfast:{k}:void:ID  for two TTLs after an attempt whose outcome was not known
//
// In k, braces, percent signs, control characters and bytes that are not UTF-8 are
// percent-encoded. The braces around it keep what belongs to one lock on one node of
// a cluster. In the server's access control, the locks' user needs
//
//	~holdfast:* +eval +evalsha +get +set +del +exists +pexpire +time +ping
//
// and for the warning +info.
package redislock
