package lock

import (
	"fmt"
	"time"
)

// Event is one thing that happened, for logs, metrics and traces.
type Event struct {
	Kind  EventKind
	Key   string        // empty for the renewal of a lease that many keys share
	Token Token         // 0 where there is none
	Took  time.Duration // how long the call took: the wait, the renewal, the release
	Left  time.Duration // how long the hold stays proved, where it is held

	// Err says why: of Failed, RenewFailed, Unanswered, LostLock and Warning, and of a
	// Released that found the lock gone ([ErrLost]) or whose outcome is unknown.
	Err error
}

// EventKind says what an [Event] is about.
type EventKind uint8

// The kinds of events.
const (
	Contended   EventKind = iota + 1 // an acquisition found the key taken, once each
	Acquired                         // a handle is about to be returned
	Failed                           // an acquisition returned an error
	Renewed                          // a lease was extended
	RenewFailed                      // a renewal proved nothing; it is retried
	Jeopardy                         // a third of the term is left and no renewal has come through
	LostLock                         // Lost was closed
	Released                         // a release was answered, or given up (Err)
	Warning                          // something about the backend that its operator should mend (Err)
	Unanswered                       // an acquisition could not ask the server, once each; it tries again
)

var kindNames = [...]string{
	Contended: "contended", Acquired: "acquired", Failed: "failed", Renewed: "renewed",
	RenewFailed: "renew-failed", Jeopardy: "jeopardy", LostLock: "lost", Released: "released", Warning: "warning",
	Unanswered: "unanswered",
}

// String returns the kind in lower case, as logs and metrics want it.
func (k EventKind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("event(%d)", uint8(k))
}
