package torture

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Event is one line of the log. Which fields are set depends on the Kind. Moments are
// nanoseconds of a clock that all processes of the machine share.
type Event struct {
	At     int64  `json:"at"` // of a call before it, of a return after it
	Kind   Kind   `json:"kind"`
	Who    string `json:"who,omitempty"` // w2.1: the second life of worker 2
	Op     uint64 `json:"op,omitempty"`  // the acquisition, in its process, that this belongs to
	Key    string `json:"key,omitempty"`
	Token  uint64 `json:"token,omitempty"`
	Shared bool   `json:"shared,omitempty"`
	Try    bool   `json:"try,omitempty"`   // of Acquire: TryAcquire
	OK     bool   `json:"ok,omitempty"`    // of Wrote and Decided: accepted
	Value  uint64 `json:"value,omitempty"` // of Write, Wrote and Decided: which write
	Fence  uint64 `json:"fence,omitempty"` // of Wrote and Decided: the greatest token accepted, afterwards
	From   int64  `json:"from,omitempty"`  // where the event is an interval that ends At
	Limit  int64  `json:"limit,omitempty"` // of Granted: MaxHold
	Until  int64  `json:"until,omitempty"` // of Granted and Proved: valid until then; of Failed: when the context ended
	Err    string `json:"err,omitempty"`   // of an outcome; "": none
	Text   string `json:"text,omitempty"`  // of an outcome that is not known
	Fault  string `json:"fault,omitempty"` // of Inject and Heal
}

// Kind says what an [Event] is about.
type Kind string

// What workers log.
const (
	Acquire  Kind = "acquire"  // is about to be called
	Granted  Kind = "granted"  // it returned a handle
	Failed   Kind = "failed"   // it returned an error
	Proved   Kind = "proved"   // the handle is valid for longer than it was
	Lost     Kind = "lost"     // the channel was seen closed
	Revived  Kind = "revived"  // a handle says that it is held after it was lost or released
	Release  Kind = "release"  // is about to be called
	Released Kind = "released" // it returned
	Write    Kind = "write"    // to the resource, is about to be sent
	Wrote    Kind = "wrote"    // it was answered
	Stall    Kind = "stall"    // the process was not running, or late, from From to At
	Dying    Kind = "dying"    // it kills itself
	Final    Kind = "final"    // all is well again, and the key was acquired once more and released, or not (Err)
	Close    Kind = "close"
	Closed   Kind = "closed"
)

// What the test logs.
const (
	Decided  Kind = "decided"  // the resource has judged a write
	Saw      Kind = "saw"      // the server shows a grant, of Who, for the first time; first asked at From
	Gone     Kind = "gone"     // the server does not show it any more; shown when asked at From
	Showing  Kind = "showing"  // at the end of the log it was still shown when asked at From
	Killed   Kind = "killed"   // a process, or will be in a moment
	Exited   Kind = "exited"   // it was seen to have ended
	Inject   Kind = "inject"   // Who is a worker, or empty: all
	Injected Kind = "injected" // the call to inject has returned
	Heal     Kind = "heal"     // is healed: the call has returned
	Calm     Kind = "calm"     // every fault is healed
)

// Outcomes in Event.Err.
const (
	errHeld        = "held"
	errUnavailable = "unavailable"
	errLost        = "lost"
	errMaxHold     = "max hold"
	errClosed      = "closed"
	errEnded       = "context"
	errOther       = "other: "
)

// String is the event for people to read. Moments are in seconds.
func (e Event) String() string { return e.since(0) }

// since is String with moments that count from another.
func (e Event) since(began int64) string {
	var b strings.Builder
	moment := func(at int64) string {
		if at == never {
			return "never"
		}
		return fmt.Sprintf("%.6f", time.Duration(at-began).Seconds())
	}
	fmt.Fprintf(&b, "%s %s", moment(e.At), e.Kind)
	add := func(name string, v any, set bool) {
		if set {
			fmt.Fprintf(&b, " %s=%v", name, v)
		}
	}
	add("who", e.Who, e.Who != "")
	add("op", e.Op, e.Op != 0)
	add("key", e.Key, e.Key != "")
	add("token", e.Token, e.Token != 0)
	add("shared", e.Shared, e.Shared)
	add("ok", e.OK, e.Kind == Wrote || e.Kind == Decided)
	add("fence", e.Fence, e.Fence != 0)
	add("from", moment(e.From), e.From != 0)
	add("until", moment(e.Until), e.Until != 0)
	add("limit", time.Duration(e.Limit), e.Limit != 0)
	add("fault", e.Fault, e.Fault != "")
	add("err", e.Err, e.Err != "")
	add("text", strconv.Quote(e.Text), e.Text != "")
	return b.String()
}

// log writes events. Several processes append to one file, each line by one write: the
// kernel keeps them apart.
type log struct {
	mu sync.Mutex
	w  io.Writer
}

// add writes e, with the present moment if it has none. A process that is killed in
// the middle of a line leaves a piece of it: the next line begins on its own.
func (l *log) add(e Event) {
	if e.At == 0 {
		e.At = now()
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(err) // of a struct of numbers and strings
	}
	line = append(append([]byte{'\n'}, line...), '\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.w.Write(line); err != nil {
		panic("torture: the log cannot be written: " + err.Error()) // without it nothing is proved
	}
}

// ReadLog reads a log, in the order of its stamps. torn is how many lines were broken
// off by the death of their process.
func ReadLog(r io.Reader) (events []Event, torn int, err error) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var e Event
		if json.Unmarshal(line, &e) != nil {
			torn++
			continue
		}
		events = append(events, e)
	}
	sortEvents(events)
	return events, torn, lines.Err()
}

func sortEvents(events []Event) {
	slices.SortStableFunc(events, func(a, b Event) int {
		switch {
		case a.At < b.At:
			return -1
		case a.At > b.At:
			return 1
		}
		return 0
	})
}

// pulse logs when the process, or its machine, was late to run a timer by more than it
// takes to notice: until stop is closed.
func pulse(l *log, who string, stop <-chan struct{}) {
	const beat, late = 5 * time.Millisecond, 10 * time.Millisecond
	timer := time.NewTicker(beat)
	defer timer.Stop()
	last := now()
	for {
		select {
		case <-stop:
			return
		case <-timer.C:
		}
		at := now()
		if at-last > int64(beat+late) {
			l.add(Event{At: at, Kind: Stall, Who: who, From: last})
		}
		last = at
	}
}
