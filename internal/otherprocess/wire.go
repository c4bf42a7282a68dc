package otherprocess

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// op is what is asked of the process.
type op uint8

const (
	opOpen op = iota + 1
	opAcquire
	opTryAcquire
	opInspect
	opClose
	opErr // of a handle, as are the next two
	opValid
	opRelease
	opEndContext // of a call under way
	opObserved   // an event
)

// request is what the test sends to the process.
type request struct {
	Op     op
	Call   uint64 // the answer has it, too; with opObserved, the number of the event
	Handle uint64

	URL    string
	Config config

	Key        string
	Settings   lock.Settings // what the options come to
	BadOptions *failure      // or why they come to nothing

	// The call's context.
	Endless     bool // it has no end
	HasDeadline bool
	Left        time.Duration // until the deadline
	Ended       *failure      // it is cancelled, and why
}

// config is a [lock.Config] on its way: what is not zero goes before what the URL says.
type config struct {
	TTL       time.Duration
	Owner     string
	TokenBase lock.Token
	Observe   bool
}

// answer is what the process sends to the test: the end of a call or, with no call, an
// event, or the loss of a handle.
type answer struct {
	Call     uint64
	Err      *failure
	Handle   uint64 // the one that was acquired, or lost
	Token    lock.Token
	HasToken bool
	Features lock.Features
	Info     lock.Info

	// The handle that was asked, after it was: Err, Valid, and whether Lost is closed.
	State *failure
	Valid time.Duration
	Lost  bool

	Event *event
}

// event is a [lock.Event] on its way.
type event struct {
	Number uint64
	Caller uint64     // the call whose context it has
	Event  lock.Event // without its error
	Err    *failure
}

// failure is an error on its way.
type failure struct {
	Text  string
	Is    []int // which of known it matches
	Cause bool  // it matches the cause of the end of the call's context
}

// known are the errors that are matched in both processes. What is not here, and is no
// cause of a context, is a text to the other one.
var known = []error{
	lock.ErrHeld, lock.ErrLost, lock.ErrReleased, lock.ErrClosed, lock.ErrUnavailable, lock.ErrInvalid, lock.ErrMaxHold,
	errors.ErrUnsupported, context.Canceled, context.DeadlineExceeded,
}

// pack makes err ready for the way. cause may be nil.
func pack(err, cause error) *failure {
	if err == nil {
		return nil
	}
	f := &failure{Text: err.Error(), Cause: cause != nil && errors.Is(err, cause)}
	for i, k := range known {
		if errors.Is(err, k) {
			f.Is = append(f.Is, i)
		}
	}
	return f
}

// unpack returns the error that f is. cause is what it matches if it did so where it
// comes from.
func (f *failure) unpack(cause error) error {
	if f == nil {
		return nil
	}
	e := &travelled{text: f.Text}
	for _, i := range f.Is {
		if known[i].Error() == f.Text && len(f.Is) == 1 && !f.Cause {
			return known[i]
		}
		e.is = append(e.is, known[i])
	}
	if f.Cause && cause != nil && !slices.Contains(e.is, cause) {
		e.is = append(e.is, cause)
	}
	return e
}

// unpackFor returns the error that f is to a call with that context. The process has a clock
// of its own for the context's deadline, which may ring a little before the context's here:
// until that has ended as well, there is no cause.
func (f *failure) unpackFor(ctx context.Context) error {
	if f != nil && f.Cause && ctx.Done() != nil {
		<-ctx.Done()
	}
	return f.unpack(context.Cause(ctx))
}

// travelled is an error that comes from another process.
type travelled struct {
	text string
	is   []error
}

func (e *travelled) Error() string   { return e.text }
func (e *travelled) Unwrap() []error { return e.is }

// writer writes messages. Its reader sees them whole, and in order.
type writer struct {
	mu  sync.Mutex
	enc *gob.Encoder
}

func newWriter(w io.Writer) *writer { return &writer{enc: gob.NewEncoder(w)} }

// send writes a message. That nobody reads any more is no news: what the other side sends
// ends then, too.
func (w *writer) send(message any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.enc.Encode(message)
	if err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, os.ErrClosed) {
		panic(fmt.Sprintf("otherprocess: %T: %v", message, err))
	}
}
