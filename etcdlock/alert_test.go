package etcdlock_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// terminator speaks TLS for a server, and can keep an answer back and spoil the connection, as
// something on the way does that changes a byte: then it says so by an alert.
type terminator struct {
	listener net.Listener
	tls      *tls.Config
	server   string
	serving  sync.WaitGroup

	mu    sync.Mutex
	conns []io.Closer
	match []byte // the next request that has it in it is not answered
	spoil func() // spoils the connection of that
}

func newTerminator(t *testing.T, server, cert, key string) *terminator {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &terminator{listener: l, server: server, tls: &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13}}
	r.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.serving.Go(func() { r.relay(conn) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		r.mu.Lock()
		for _, c := range r.conns {
			c.Close()
		}
		r.mu.Unlock()
		r.serving.Wait()
	})
	return r
}

// relay serves a connection. What is encrypted goes through a pipe, into which more can be put.
func (r *terminator) relay(client net.Conn) {
	outer, inner := net.Pipe()
	encrypted := tls.Server(inner, r.tls)
	server, err := net.Dial("tcp", r.server)
	if err != nil {
		client.Close()
		return
	}
	r.mu.Lock()
	r.conns = append(r.conns, client, outer, inner, server)
	r.mu.Unlock()
	r.serving.Go(func() { _, _ = io.Copy(outer, client); outer.Close() })
	r.serving.Go(func() { _, _ = io.Copy(client, outer); client.Close() })

	var silent sync.Mutex // locked once no answer passes any more
	muted := false
	r.serving.Go(func() {
		defer encrypted.Close()
		buf := make([]byte, 32<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				return
			}
			silent.Lock()
			if !muted {
				_, err = encrypted.Write(buf[:n])
			}
			silent.Unlock()
			if err != nil {
				return
			}
		}
	})
	defer server.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := encrypted.Read(buf) // which sends the alert
		if err != nil {
			return
		}
		r.mu.Lock()
		if r.match != nil && bytes.Contains(buf[:n], r.match) {
			r.match = nil
			silent.Lock()
			muted = true
			silent.Unlock()
			r.spoil = func() { _, _ = outer.Write(append([]byte{0x17, 3, 3, 0, 0x20}, make([]byte, 32)...)) }
		}
		r.mu.Unlock()
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// next does f, has the next request with that text carried out until done says so, and spoils
// its connection then.
func (r *terminator) next(t *testing.T, text string, done func() bool, f func()) {
	t.Helper()
	r.mu.Lock()
	r.match, r.spoil = []byte(text), nil
	r.mu.Unlock()
	var asking sync.WaitGroup
	asking.Go(f)
	until(t, done)
	r.mu.Lock()
	spoil := r.spoil
	r.mu.Unlock()
	if spoil == nil {
		t.Fatal("the request has not come by")
	}
	spoil()
	asking.Wait()
}

// An alert of TLS in the middle of a connection proves nothing about the requests that were
// under way: what creates a lock leaves none, and what deletes one deletes no other.
func TestAlertInMidConnection(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	cert, key, ca := certificate(t, "127.0.0.1")
	r := newTerminator(t, s.Addr(), cert, key)
	l := openURL(t, "etcds://"+r.listener.Addr().String()+"?ca="+ca+"&ttl=10s")
	warmUp(t, l)
	there := func(n int) func() bool {
		return func() bool { return len(names(t, direct, "/holdfast/{ghost}/")) == n }
	}

	r.next(t, "{ghost}/x", there(1), func() {
		_, err := l.TryAcquire(t.Context(), "ghost")
		matches(t, "TryAcquire that was carried out, and answered by an alert", err, lock.ErrUnavailable)
	})
	until(t, there(0))
	other := lockerOn(t, direct, etcdlock.Config{})
	release(t, must(t)(other.TryAcquire(t.Context(), "ghost")))

	// By the driver, as the engine sends what fails again.
	trusting := dial(t, "https://"+r.listener.Addr().String(), func(c *clientv3.Config) {
		c.TLS = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // it is the test's own
	})
	d, err := etcdlock.NewDriver(trusting, etcdlock.Config{Config: lock.Config{TTL: 10 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(t.Context())
	g, err := d.Acquire(t.Context(), ask("ghost"))
	if err != nil {
		t.Fatal(err)
	}
	r.next(t, "{ghost}/x", there(0), func() {
		if err := g.Release(t.Context()); err == nil || driver.LeavesNothing(err) {
			t.Errorf("Release that was carried out, and answered by an alert: %v, want an error that proves nothing", err)
		}
	})
	if _, names := etcdlock.Booked(d); names != 1 {
		t.Errorf("%d names are on the books, want the one that a late copy may delete yet", names)
	}
}
