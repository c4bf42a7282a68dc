//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// stub is a Locker for one process whose URL says how it behaves:
//
//	open=invalid|unavailable|hang     what opening does
//	acquire=busy|unavailable|denied   the error of an acquisition
//	acquire=late                      granted only when the wait has been cancelled
//	lose=PATH                         the lock is lost when PATH exists
//	release=unknown|lost|hang         the outcome of a release
//	token=no                          grants have no token
//	log=PATH                          "opened", "acquired MARGIN", "released" and "closed" are added there
type stub struct {
	q url.Values
}

func openStub(ctx context.Context, rawURL string, _ ...func(*lock.Config)) (lock.Locker, error) {
	u, err := url.Parse(rawURL)
	if err != nil || u.Scheme != "stub" {
		return nil, fmt.Errorf("holdfast: open: %w: no stub URL", lock.ErrInvalid)
	}
	s := &stub{q: u.Query()}
	switch s.q.Get("open") {
	case "invalid":
		return nil, fmt.Errorf("holdfast: open: %w:\nunknown query key", lock.ErrInvalid)
	case "unavailable":
		return nil, fmt.Errorf("holdfast: open: %w: connection refused", lock.ErrUnavailable)
	case "hang":
		s.log("opened")
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.log("opened")
	return s, nil
}

func (s *stub) log(line string) {
	path := s.q.Get("log")
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err == nil {
		_, err = f.WriteString(line + "\n")
	}
	if err = errors.Join(err, f.Close()); err != nil {
		panic(err)
	}
}

func (s *stub) Acquire(ctx context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	set, err := lock.Resolve(opts...)
	if err != nil {
		return nil, err
	}
	if set.Wait != lock.NoLimit {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, set.Wait)
		defer cancel()
	}
	h, err := s.attempt(key, set)
	if errors.Is(err, lock.ErrHeld) || errors.Is(err, lock.ErrUnavailable) {
		<-ctx.Done()
		if set.Wait == lock.NoLimit {
			err = ctx.Err()
		}
	}
	if s.q.Get("acquire") == "late" {
		<-ctx.Done()
	}
	return h, err
}

func (s *stub) TryAcquire(_ context.Context, key string, opts ...lock.Option) (lock.Handle, error) {
	set, err := lock.Resolve(opts...)
	if err != nil {
		return nil, err
	}
	return s.attempt(key, set)
}

func (s *stub) attempt(key string, set lock.Settings) (lock.Handle, error) {
	var err error
	switch s.q.Get("acquire") {
	case "busy":
		err = lock.ErrHeld
	case "unavailable":
		err = lock.ErrUnavailable
	case "denied":
		err = errors.New("NOAUTH Authentication required")
	default:
		s.log("acquired " + set.Margin.String())
		h := &stubHandle{s: s, key: key, lost: make(chan struct{})}
		go h.watch()
		return h, nil
	}
	s.log("refused")
	return nil, fmt.Errorf("holdfast: acquire %q: %w", key, err)
}

func (s *stub) Inspect(context.Context, string) (lock.Info, error) { return lock.Info{}, nil }
func (s *stub) Features() lock.Features                            { return lock.Leased }
func (s *stub) Close() error {
	s.log("closed")
	return nil
}

type stubHandle struct {
	s    *stub
	key  string
	lost chan struct{}
	once sync.Once
}

func (h *stubHandle) watch() {
	for h.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	close(h.lost)
}

func (h *stubHandle) Key() string { return h.key }
func (h *stubHandle) Token() (lock.Token, bool) {
	if h.s.q.Get("token") == "no" {
		return 0, false
	}
	return 42, true
}
func (h *stubHandle) Lost() <-chan struct{} { return h.lost }
func (h *stubHandle) Err() error {
	if _, err := os.Stat(h.s.q.Get("lose")); err == nil {
		return fmt.Errorf("holdfast: %q: %w: the stub says so", h.key, lock.ErrLost)
	}
	return nil
}
func (h *stubHandle) Valid() time.Duration { return time.Second }
func (h *stubHandle) Release(ctx context.Context) error {
	h.once.Do(func() { h.s.log("released") })
	switch h.s.q.Get("release") {
	case "unknown":
		return fmt.Errorf("holdfast: release %q: %w: connection reset", h.key, lock.ErrUnavailable)
	case "lost":
		return fmt.Errorf("holdfast: release %q: %w: not the holder", h.key, lock.ErrLost)
	case "hang":
		<-ctx.Done()
		return ctx.Err()
	}
	return h.Err()
}
