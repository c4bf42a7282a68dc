package pglock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/pglock"
)

// A caller leaves when its context ends, also the one that reads for all; and what it leaves
// behind is read: the others get their answers, each its own.
func TestWhoReadsLeaves(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	p, err := conformance.NewProxy(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	d, err := pglock.NewDriver("postgres://"+testserver.PostgresUser+"@"+p.Addr()+"/postgres?sslmode=disable", pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	ask := func(ctx context.Context, key string) (driver.Grant, error) {
		return d.Acquire(ctx, &driver.Request{Key: key, ID: key, Busy: func() {}})
	}
	for i, end := range []func(context.Context) (context.Context, context.CancelFunc){
		context.WithCancel,
		func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, 200*time.Millisecond)
		},
	} {
		for round := range 4 {
			first, second := fmt.Sprint("first-", i, round), fmt.Sprint("second-", i, round)
			g, err := ask(t.Context(), "before") // after it the next caller finds nobody reading
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			p.StallReplies()
			ctx, cancel := end(t.Context())
			left, got := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := ask(ctx, first)
				left <- err
			}()
			until(t, func() bool { return holderOf(t, admin, first) != 0 })
			go func() {
				g, err := ask(t.Context(), second)
				if err == nil {
					err = g.Release(t.Context())
				}
				got <- err
			}()
			until(t, func() bool { return holderOf(t, admin, second) != 0 })
			if i == 0 {
				cancel()
			}
			select {
			case err := <-left:
				if !errors.Is(err, ctx.Err()) {
					t.Errorf("who left got %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the caller does not leave")
			}
			cancel()
			p.Heal()
			select {
			case err := <-got:
				if err != nil {
					t.Errorf("the other caller got %v", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("the other caller gets no answer")
			}
			if err := d.Abandon(t.Context(), &driver.Request{Key: first, ID: first}); err != nil {
				t.Error(err)
			}
			if n := lockRows(t, admin); n != 0 {
				t.Fatalf("%d locks are left", n)
			}
		}
	}
}

// drip is a connection that brings what it reads byte by byte, once it is told to: so slowly
// that a caller who reads an answer looks at its context several times.
type drip struct {
	net.Conn
	slow *atomic.Bool
}

func (d drip) Read(p []byte) (int, error) {
	if d.slow.Load() {
		time.Sleep(8 * time.Millisecond)
		p = p[:1]
	}
	return d.Conn.Read(p)
}

// An answer may come in pieces, to several who read one after the other.
func TestAnswersInPieces(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	var slow atomic.Bool
	l := lockerDialing(t, urlOf(s, ""), pglock.Config{}, func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return drip{c, &slow}, err
	})
	release(t, tryAcquire(t, l, "warm-up"))
	slow.Store(true)
	pairs := func(key string, n int) {
		last := lock.Token(0)
		for range n {
			h, err := l.TryAcquire(context.Background(), key)
			if err != nil {
				t.Error(err)
				return
			}
			if token := tokenOf(h); token <= last {
				t.Errorf("token %d after %d", token, last)
			}
			last = tokenOf(h)
			if err := h.Release(context.Background()); err != nil {
				t.Error(err)
			}
		}
	}
	pairs("alone", 4)
	var all sync.WaitGroup
	for i := range 3 {
		key := fmt.Sprint("key-", i)
		all.Go(func() { pairs(key, 1) })
		all.Go(func() { // and one who leaves in the middle
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if h, err := l.TryAcquire(ctx, key+"-left"); err == nil {
				release(t, h)
			}
		})
	}
	all.Wait()
	slow.Store(false)
	until(t, func() bool { return lockRows(t, admin) == 0 })
}

// timeless is a connection without deadlines, as one through SSH is.
type timeless struct{ net.Conn }

func (timeless) SetDeadline(time.Time) error      { return errors.ErrUnsupported }
func (timeless) SetReadDeadline(time.Time) error  { return errors.ErrUnsupported }
func (timeless) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }

// Nobody is kept by a connection on which no reading can be given up.
func TestConnectionWithoutDeadlines(t *testing.T) {
	s := testserver.Postgres(t)
	p, err := conformance.NewProxy(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	u := "postgres://" + testserver.PostgresUser + "@" + p.Addr() + "/postgres?sslmode=disable"
	l := lockerDialing(t, u, pglock.Config{Config: lock.Config{TTL: time.Minute}}, func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return timeless{c}, err
	})
	for range 100 {
		release(t, tryAcquire(t, l, "one"))
	}
	p.Stall()
	began := time.Now()
	if _, err := l.TryAcquire(context.Background(), "two"); !errors.Is(err, lock.ErrUnavailable) {
		t.Errorf("TryAcquire at a mute server: %v", err)
	}
	if took := time.Since(began); took > 20*time.Second { // it has 10 s
		t.Errorf("came back after %v", took)
	}
	p.Heal()
}
