package otherprocess

import (
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// patience is how long a call waits for its answer when its context has ended. It is more
// than the suite lets a Locker take: whoever does not come back in time is seen not to.
const patience = 5 * time.Second

var (
	errEnded    = errors.New("the process of the Locker has ended")
	errNoAnswer = errors.New("the process of the Locker does not answer")
)

// caller makes calls of the process.
type caller struct {
	out     *writer
	pipe    *os.File // below out
	observe func(context.Context, lock.Event)
	gone    chan struct{} // closed when the process has ended, and all that it sent was read

	mu      sync.Mutex
	last    uint64
	pending map[uint64]*pending
	fates   map[uint64]*fate // by handle
}

// pending is a call that was not answered yet.
type pending struct {
	ctx     context.Context
	handle  uint64 // that is asked, or 0
	answers chan answer
}

func newCaller(requests, answers *os.File, observe func(context.Context, lock.Event)) *caller {
	c := &caller{
		out: newWriter(requests), pipe: requests, observe: observe, gone: make(chan struct{}),
		pending: make(map[uint64]*pending), fates: make(map[uint64]*fate),
	}
	go c.read(answers)
	return c
}

// hangUp tells the process that it is not needed any more.
func (c *caller) hangUp() { _ = c.pipe.Close() }

// call has r carried out with ctx. Its error says that there is no answer.
func (c *caller) call(ctx context.Context, r request) (answer, error) {
	p := c.begin(ctx, &r)
	c.out.send(r)
	select {
	case a := <-p.answers:
		return a, nil
	case <-c.gone:
		return p.late()
	case <-ctx.Done():
	}
	// A deadline that has passed has passed there, too, or is about to.
	if errors.Is(ctx.Err(), context.Canceled) && r.Ended == nil {
		c.out.send(request{Op: opEndContext, Call: r.Call, Ended: pack(context.Cause(ctx), nil)})
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-p.answers:
		return a, nil
	case <-c.gone:
		return p.late()
	case <-timer.C:
		return c.giveUp(r.Call, p)
	}
}

// begin gives r a number, and the context as the process can have it.
func (c *caller) begin(ctx context.Context, r *request) *pending {
	p := &pending{ctx: ctx, handle: r.Handle, answers: make(chan answer, 1)}
	c.mu.Lock()
	c.last++
	r.Call = c.last
	c.pending[r.Call] = p
	c.mu.Unlock()
	r.Endless = ctx.Done() == nil
	if deadline, ok := ctx.Deadline(); ok {
		r.HasDeadline, r.Left = true, time.Until(deadline)
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		r.Ended = pack(context.Cause(ctx), nil)
	}
	return p
}

// late returns what came before the end of the process.
func (p *pending) late() (answer, error) {
	select {
	case a := <-p.answers:
		return a, nil
	default:
		return answer{}, errEnded
	}
}

// giveUp leaves a call. What it may still bring is given back, see deliver.
func (c *caller) giveUp(call uint64, p *pending) (answer, error) {
	c.mu.Lock()
	_, waits := c.pending[call]
	delete(c.pending, call)
	c.mu.Unlock()
	if !waits {
		return <-p.answers, nil // it has just come
	}
	return answer{}, fmt.Errorf("%w: %w: %w", errNoAnswer, p.ctx.Err(), context.Cause(p.ctx))
}

// read takes what the process sends, until its end.
func (c *caller) read(answers *os.File) {
	defer answers.Close()
	for dec := gob.NewDecoder(answers); ; {
		var a answer
		if dec.Decode(&a) != nil {
			break
		}
		switch {
		case a.Event != nil:
			go c.tell(c.contextOf(a.Event.Caller), a.Event)
		case a.Call != 0:
			c.deliver(a)
		default:
			c.fate(a.Handle).tell(a)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.fates {
		f.end()
	}
	close(c.gone)
}

func (c *caller) deliver(a answer) {
	c.mu.Lock()
	p := c.pending[a.Call]
	delete(c.pending, a.Call)
	c.mu.Unlock()
	switch {
	case p != nil && p.handle != 0:
		c.fate(p.handle).tell(a)
		p.answers <- a
	case p != nil:
		p.answers <- a
	case a.Handle != 0: // a grant that nobody waits for
		go c.out.send(request{Op: opRelease, Handle: a.Handle, Endless: true})
	}
}

// contextOf returns the context of a call that was not answered yet, or the background.
func (c *caller) contextOf(call uint64) context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.pending[call]; p != nil {
		return p.ctx
	}
	return context.Background()
}

// tell tells the observer. It may ask a handle meanwhile.
func (c *caller) tell(ctx context.Context, e *event) {
	ev := e.Event
	ev.Err = e.Err.unpackFor(ctx)
	c.observe(ctx, ev)
	c.out.send(request{Op: opObserved, Call: e.Number})
}

// fate returns that of a handle, whose loss may be told before its acquisition.
func (c *caller) fate(handle uint64) *fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.fates[handle]
	if f == nil {
		f = &fate{lost: make(chan struct{})}
		c.fates[handle] = f
		select {
		case <-c.gone:
			f.end()
		default:
		}
	}
	return f
}

// fate is what has become of a handle, as far as the process has told.
type fate struct {
	lost chan struct{}

	mu   sync.Mutex
	told bool  // lost is closed
	over error // what Err was last, if not nil
}

// tell takes what the process says.
func (f *fate) tell(a answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.State != nil {
		f.over = a.State.unpack(nil)
	}
	if a.Lost {
		f.close()
	}
}

// end is the end of the process: what it held is lost.
func (f *fate) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over == nil {
		f.over = fmt.Errorf("%w: %w", lock.ErrLost, errEnded)
	}
	if errors.Is(f.over, lock.ErrLost) {
		f.close()
	}
}

func (f *fate) close() {
	if !f.told {
		f.told = true
		close(f.lost)
	}
}

// last returns what Err was last.
func (f *fate) last() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.over
}
