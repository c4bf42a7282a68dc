package etcdlock

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

const defaultPrefix = "/holdfast/"

// locksUnder is what the names of all locks under a prefix begin with.
func locksUnder(prefix string) string { return prefix + "{" }

// queueName is what the names of all entries of a lock begin with, and no others.
func queueName(prefix, key string) string { return prefix + driver.BraceKey(key) + "/" }

// What an entry's name goes on with, before its lease.
const (
	exclusive = "x"
	shared    = "s"
)

// entryName is the n-th name of a lease in a queue. Names are used again, and are not made up
// for each request: the server goes through all that there have been since it was last
// compacted whenever it looks at the queue.
func entryName(queue string, mode lock.Mode, lease string, n int) string {
	letter := exclusive
	if mode == lock.ModeShared {
		letter = shared
	}
	if n == 0 {
		return queue + letter + lease
	}
	return queue + letter + lease + "-" + strconv.Itoa(n)
}

// leaseName is a lease as etcdctl writes it.
func leaseName(id clientv3.LeaseID) string { return fmt.Sprintf("%016x", int64(id)) }

// rivals is what the names begin with of those who must have gone before a request of that
// mode can be granted.
func rivals(queue string, mode lock.Mode) string {
	if mode == lock.ModeShared {
		return queue + exclusive
	}
	return queue
}

// barrierName is the name of a lease's barrier: see session. No key is empty, so that this is
// in no lock's queue.
func barrierName(prefix, lease string) string { return prefix + "{}/" + lease }

// record is the value of an entry: of which request it is, when that was sent, in
// microseconds, and for whom.
func record(id string, asked time.Time, owner string) string {
	return id + " " + strconv.FormatInt(asked.UnixMicro(), 10) + " " + owner
}

// parseRecord undoes record. Of what is not ours, and in the way all the same, nothing is known.
func parseRecord(value string) (id string, asked time.Time, owner string) {
	fields := strings.SplitN(value, " ", 3)
	if len(fields) != 3 {
		return "", time.Time{}, ""
	}
	micros, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return "", time.Time{}, ""
	}
	return fields[0], time.UnixMicro(micros), fields[2]
}
