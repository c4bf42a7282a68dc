package otherprocess

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// variable in the environment makes a test binary serve.
const variable = "HOLDFAST_TEST_OTHER_PROCESS"

// What the process inherits, after the standard ones.
const (
	requestsFD = 3
	answersFD  = 4
)

// Serve returns at once, unless this is a process that [Open] has started. Then it opens
// and serves the Locker, and ends the process.
func Serve() {
	if os.Getenv(variable) == "" {
		return
	}
	_ = os.Unsetenv(variable)
	syscall.CloseOnExec(requestsFD)
	syscall.CloseOnExec(answersFD)
	s := &server{
		out:      newWriter(os.NewFile(answersFD, "answers")),
		calls:    make(map[uint64]context.CancelCauseFunc),
		handles:  make(map[uint64]lock.Handle),
		observed: make(map[uint64]chan struct{}),
	}
	if err := s.serve(os.NewFile(requestsFD, "requests")); err != nil {
		fmt.Fprintln(os.Stderr, "otherprocess:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// server is the process.
type server struct {
	out *writer

	mu       sync.Mutex
	locker   lock.Locker                        // nil until it is open; nothing else is asked before
	calls    map[uint64]context.CancelCauseFunc // under way, whose contexts can end
	handles  map[uint64]lock.Handle             // all there ever were: they may be asked
	observed map[uint64]chan struct{}           // events that the test has not answered yet
	last     uint64                             // number of a handle or an event
}

// serve returns when the test has closed its end of the pipe, or is no more.
func (s *server) serve(in io.Reader) error {
	for dec := gob.NewDecoder(in); ; {
		var r request
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch r.Op {
		case opEndContext:
			s.endContext(r)
		case opObserved:
			s.endEvent(r.Call)
		default: // what may take its time; a context can end from the next request on
			ctx, done := s.begin(r)
			go func() {
				a := s.answer(ctx, r)
				a.Call = r.Call
				done()
				s.out.send(a)
				if a.Handle != 0 {
					s.watch(a.Handle)
				}
			}()
		}
	}
}

// callOf is the key of a call's number in its context.
type callOf struct{}

// overdue is the cause when the deadline of a call's context has passed. The test's own
// cause stands in its place there.
var overdue = &travelled{text: context.DeadlineExceeded.Error(), is: []error{context.DeadlineExceeded}}

// begin returns the context of a call as its caller has it.
func (s *server) begin(r request) (context.Context, func()) {
	ctx := context.WithValue(context.Background(), callOf{}, r.Call)
	if r.Endless {
		return ctx, func() {}
	}
	ctx, end := context.WithCancelCause(ctx)
	s.mu.Lock()
	s.calls[r.Call] = end
	s.mu.Unlock()
	s.endContext(r)
	stop := func() {}
	if r.HasDeadline {
		ctx, stop = context.WithDeadlineCause(ctx, time.Now().Add(r.Left), overdue)
	}
	return ctx, func() {
		s.mu.Lock()
		delete(s.calls, r.Call)
		s.mu.Unlock()
		stop()
		end(nil)
	}
}

func (s *server) endContext(r request) {
	s.mu.Lock()
	end := s.calls[r.Call]
	s.mu.Unlock()
	if end != nil && r.Ended != nil {
		end(r.Ended.unpack(nil))
	}
}

// answer makes a call.
func (s *server) answer(ctx context.Context, r request) answer {
	switch r.Op {
	case opOpen:
		return s.open(r)
	case opAcquire, opTryAcquire:
		return s.acquire(ctx, r)
	case opInspect:
		info, err := s.opened().Inspect(ctx, r.Key)
		return answer{Info: info, Err: packFor(ctx, err)}
	case opClose:
		return answer{Err: pack(s.opened().Close(), nil)}
	default:
		return s.ask(ctx, r)
	}
}

// packFor packs an error of a call with that context.
func packFor(ctx context.Context, err error) *failure { return pack(err, context.Cause(ctx)) }

func (s *server) open(r request) answer {
	l, err := lock.Open(context.Background(), r.URL, func(c *lock.Config) {
		if r.Config.TTL != 0 {
			c.TTL = r.Config.TTL
		}
		if r.Config.Owner != "" {
			c.Owner = r.Config.Owner
		}
		if r.Config.TokenBase != 0 {
			c.TokenBase = r.Config.TokenBase
		}
		if r.Config.Observe {
			c.Observe = s.observe
		}
	})
	if err != nil {
		return answer{Err: pack(err, nil)}
	}
	s.mu.Lock()
	s.locker = l
	s.mu.Unlock()
	return answer{Features: l.Features()}
}

func (s *server) opened() lock.Locker {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.locker
}

// acquire gives the Locker one option, with the settings of all: it judges them itself.
func (s *server) acquire(ctx context.Context, r request) answer {
	opt := func(set *lock.Settings) error {
		*set = r.Settings
		return r.BadOptions.unpack(nil)
	}
	acquire := s.opened().Acquire
	if r.Op == opTryAcquire {
		acquire = s.opened().TryAcquire
	}
	h, err := acquire(ctx, r.Key, opt)
	a := answer{Err: packFor(ctx, err)}
	if h != nil { // with an error, too, if the Locker is broken: the test must see it
		a.Handle = s.keep(h)
		a.Token, a.HasToken = h.Token()
	}
	return a
}

func (s *server) keep(h lock.Handle) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.handles[s.last] = h
	return s.last
}

// watch tells the loss of a handle, even of one that was released: that would be wrong.
func (s *server) watch(number uint64) {
	<-s.handle(number).Lost()
	s.out.send(answer{Handle: number, Lost: true})
}

func (s *server) handle(number uint64) lock.Handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.handles[number]
}

// ask asks a handle.
func (s *server) ask(ctx context.Context, r request) (a answer) {
	h := s.handle(r.Handle)
	switch r.Op {
	case opRelease:
		a.Err = packFor(ctx, h.Release(ctx))
	case opValid:
		a.Valid = h.Valid()
	}
	a.State = pack(h.Err(), nil)
	select {
	case <-h.Lost():
		a.Lost = true
	default:
	}
	return a
}

// observe tells the test of an event, and returns when its observer has.
func (s *server) observe(ctx context.Context, ev lock.Event) {
	e := &event{Event: ev, Err: packFor(ctx, ev.Err)}
	e.Event.Err = nil
	e.Caller, _ = ctx.Value(callOf{}).(uint64)
	seen := make(chan struct{})
	s.mu.Lock()
	s.last++
	e.Number = s.last
	s.observed[e.Number] = seen
	s.mu.Unlock()
	s.out.send(answer{Event: e})
	<-seen
}

func (s *server) endEvent(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.observed[number])
	delete(s.observed, number)
}
