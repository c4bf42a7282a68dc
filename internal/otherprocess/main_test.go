package otherprocess_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/otherprocess"
	"github.com/holdfast-go/holdfast/lock"
)

func TestMain(m *testing.M) {
	lock.Register("stub", openStub)
	otherprocess.Serve()
	goleak.VerifyTestMain(m)
}

// stub is a Locker that does what the key says, and tells what it was given.
type stub struct {
	cfg  lock.Config
	held atomic.Int32
}

func openStub(_ context.Context, u *url.URL, cfg lock.Config) (lock.Locker, error) {
	if u.Opaque == "refuse" {
		return nil, fmt.Errorf("%w: ttl %v, owner %q, base %d", lock.ErrInvalid, cfg.TTL, cfg.Owner, cfg.TokenBase)
	}
	if u.Opaque == "panic" {
		go panic("at the disco")
	}
	return &stub{cfg: cfg}, nil
}

// known are the errors by which a stub can fail.
var known = []error{
	lock.ErrHeld, lock.ErrLost, lock.ErrReleased, lock.ErrClosed, lock.ErrUnavailable, lock.ErrInvalid, lock.ErrMaxHold,
	errors.ErrUnsupported, context.Canceled, context.DeadlineExceeded,
}

func (s *stub) TryAcquire(ctx context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	return s.Acquire(ctx, "try "+key, opts...)
}

func (s *stub) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	what, of, _ := strings.Cut(key, " ")
	switch what {
	case "fail":
		n, _ := strconv.Atoi(of)
		return nil, fmt.Errorf("stub: %w", known[n])
	case "wait":
		s.tell(ctx, lock.Event{Kind: lock.Contended, Key: key})
		<-ctx.Done()
		err := fmt.Errorf("stub: %w: %w", ctx.Err(), context.Cause(ctx))
		s.tell(ctx, lock.Event{Kind: lock.Failed, Key: key, Err: err})
		return nil, err
	case "context":
		deadline, ok := ctx.Deadline()
		return nil, fmt.Errorf("endless %v, deadline %v %v", ctx.Done() == nil, ok, time.Until(deadline).Round(time.Minute))
	case "try", "settings":
		set, err := lock.Resolve(opts...)
		if err != nil {
			return nil, fmt.Errorf("stub: %w", err)
		}
		return nil, fmt.Errorf("%s %+v", key, set)
	}
	s.held.Add(1)
	h := &stubHandle{s: s, key: key, lost: make(chan struct{})}
	if what == "lose" {
		time.AfterFunc(50*time.Millisecond, func() { h.end(lock.ErrLost); close(h.lost) })
	}
	return h, nil
}

func (s *stub) tell(ctx context.Context, ev lock.Event) {
	if s.cfg.Observe != nil {
		s.cfg.Observe(ctx, ev)
	}
}

func (s *stub) Inspect(_ context.Context, key string) (lock.Info, error) {
	holders := make([]lock.Holder, s.held.Load())
	return lock.Info{Key: key, Holders: holders, Waiters: os.Getpid()}, nil
}

func (s *stub) Features() lock.Features { return lock.Fencing | lock.FIFO }

func (s *stub) Close() error { return nil }

type stubHandle struct {
	s    *stub
	key  string
	lost chan struct{}
	mu   sync.Mutex
	err  error
}

func (h *stubHandle) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = fmt.Errorf("stub: %q: %w", h.key, err)
		h.s.held.Add(-1)
	}
}

func (h *stubHandle) Key() string               { return "not asked" }
func (h *stubHandle) Token() (lock.Token, bool) { return 1<<63 + 1, true }
func (h *stubHandle) Lost() <-chan struct{}     { return h.lost }

func (h *stubHandle) Err() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *stubHandle) Valid() time.Duration {
	if h.Err() != nil {
		return 0
	}
	return time.Hour
}

func (h *stubHandle) Release(ctx context.Context) error {
	h.end(lock.ErrReleased)
	if err := h.Err(); errors.Is(err, lock.ErrLost) {
		return err
	}
	return ctx.Err()
}
