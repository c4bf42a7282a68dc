// Package backends is every backend of Holdfast in one import, for programs that are
// told by a URL where to lock.
//
//	l, err := backends.Open(ctx, os.Getenv("LOCK_URL"))
//	if err != nil {
//		return err
//	}
//	defer l.Close()
//
// A program with a configuration file has a [Config] there, in JSON or YAML: it says
// what a URL says, and takes passwords as they are.
//
//	lock:
//	  url: rediss://redis.example.com/0
//	  user: app
//	  password: "p@ss/w?rd"
//	  require: [fencing, leased]
//
// The package brings the SDK of every backend into the binary. A program that knows
// where it locks imports that backend alone.
package backends

import (
	"context"

	_ "github.com/holdfast-go/holdfast/etcdlock" // etcd, etcds
	"github.com/holdfast-go/holdfast/lock"
	_ "github.com/holdfast-go/holdfast/lock/filelock" // file
	_ "github.com/holdfast-go/holdfast/lock/memlock"  // mem
	_ "github.com/holdfast-go/holdfast/pglock"        // postgres, postgresql
	_ "github.com/holdfast-go/holdfast/redislock"     // redis, rediss
	_ "github.com/holdfast-go/holdfast/zklock"        // zk
)

// Open opens the Locker that rawURL names, as [lock.Open] does, with every backend
// registered: see [lock.Schemes]. The comment of a backend's package says what its
// URLs can hold.
func Open(ctx context.Context, rawURL string, configure ...func(*lock.Config)) (lock.Locker, error) {
	return lock.Open(ctx, rawURL, configure...)
}
