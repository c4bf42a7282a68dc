package driver_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// fake is a Driver whose answers a test writes itself. What a test does not set
// succeeds.
type fake struct {
	host     driver.Host
	features lock.Features
	acquire  func(ctx context.Context, r *driver.Request) (driver.Grant, error)
	abandon  func(ctx context.Context, r *driver.Request) error
	renew    func(ctx context.Context, leases []driver.Lease) []error
	inspect  func(ctx context.Context, key string) (lock.Info, error)
	close    func(ctx context.Context) error

	mu    sync.Mutex
	token lock.Token
	calls map[string]int
}

func (f *fake) count(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = make(map[string]int)
	}
	f.calls[call]++
}

func (f *fake) called(call string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[call]
}

func (f *fake) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	f.count("acquire")
	if f.acquire != nil {
		return f.acquire(ctx, r)
	}
	return f.grant(nil), nil
}

func (f *fake) Abandon(ctx context.Context, r *driver.Request) error {
	f.count("abandon")
	if f.abandon != nil {
		return f.abandon(ctx, r)
	}
	return nil
}

func (f *fake) Renew(ctx context.Context, leases []driver.Lease) []error {
	f.count("renew")
	if f.renew != nil {
		return f.renew(ctx, leases)
	}
	return make([]error, len(leases))
}

func (f *fake) Inspect(ctx context.Context, key string) (lock.Info, error) {
	f.count("inspect")
	if f.inspect != nil {
		return f.inspect(ctx, key)
	}
	return lock.Info{}, nil
}

func (f *fake) Features() lock.Features { return f.features }

func (f *fake) Close(ctx context.Context) error {
	f.count("close")
	if f.close != nil {
		return f.close(ctx)
	}
	return nil
}

// grant returns a grant on l, or on a lease of its own.
func (f *fake) grant(l *fakeLease) *fakeGrant {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.token++
	if l == nil {
		l = &fakeLease{f: f, term: ttl}
	}
	return &fakeGrant{f: f, token: f.token, lease: l, proved: driver.Now()}
}

type fakeLease struct {
	f    *fake
	term time.Duration
	end  func(ctx context.Context) error
}

func (l *fakeLease) Term() time.Duration { return l.term }

func (l *fakeLease) End(ctx context.Context) error {
	l.f.count("end")
	if l.end != nil {
		return l.end(ctx)
	}
	return nil
}

type fakeGrant struct {
	f       *fake
	token   lock.Token
	lease   *fakeLease
	proved  driver.Stamp
	release func(ctx context.Context) error
}

func (g *fakeGrant) Token() (lock.Token, bool) { return g.token, true }
func (g *fakeGrant) Lease() driver.Lease       { return g.lease }
func (g *fakeGrant) Proved() driver.Stamp      { return g.proved }

func (g *fakeGrant) Release(ctx context.Context) error {
	g.f.count("release")
	if g.release != nil {
		return g.release(ctx)
	}
	return nil
}

const ttl = 9 * time.Second

var errNet = errors.New("network is down")

// open returns a Locker over f.
func open(t *testing.T, f *fake) lock.Locker {
	return openWith(t, f, lock.Config{})
}

func openWith(t *testing.T, f *fake, cfg lock.Config) lock.Locker {
	t.Helper()
	if cfg.TTL == 0 {
		cfg.TTL = ttl
	}
	l, err := driver.New(func(h driver.Host) (driver.Driver, error) { f.host = h; return f, nil }, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		began := time.Now()
		_ = l.Close()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Close took %v", took)
		}
	})
	return l
}

func mustTry(t *testing.T, l lock.Locker, key string, opts ...lock.Option) lock.Handle {
	t.Helper()
	h, err := l.TryAcquire(t.Context(), key, opts...)
	if err != nil {
		t.Fatalf("TryAcquire(%q): %v", key, err)
	}
	return h
}

func isLost(h lock.Handle) bool {
	select {
	case <-h.Lost():
		return true
	default:
		return false
	}
}

// blocked is a call that does not notice that its context has ended, until the test
// lets it go.
type blocked chan struct{}

func (b blocked) wait() { <-b }
