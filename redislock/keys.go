package redislock

import "github.com/holdfast-go/holdfast/lock/driver"

const defaultPrefix = "holdfast"

// lockName returns the name of a lock at the server. A cluster hashes, of a name, what
// is between its first opening brace and the next closing one, unless that is
// nothing. Neither a prefix nor an escaped key holds a brace, and no key is empty: so
// that is the key, whatever its text, and all names of one lock share a slot. Nor can
// two pairs of prefix and key share a name.
func lockName(prefix, key string) string { return prefix + ":" + driver.BraceKey(key) }

// The names of what else belongs to the lock of that name.
func counterName(lock string) string       { return lock + ":token" }
func turnName(lock string) string          { return lock + ":turn" }
func queueName(lock string) string         { return lock + ":queue" }
func askedName(lock string) string         { return lock + ":asked" }
func tombstoneName(lock, id string) string { return lock + ":void:" + id }
