package zklock_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// Somebody ends the session, with its ID and password: everything on it is lost at once,
// and the same Locker goes on with another.
func TestSessionExpiredByAnother(t *testing.T) {
	server := testserver.ZooKeeper(t)
	var e eavesdropper
	l := lockerOn(t, zklock.Config{Dial: e.dial}, server.Addr())
	other := lockerOn(t, zklock.Config{}, server.Addr())
	var last lock.Token
	goroutines := 0
	for i := range 5 {
		taken := acquire(t, other, "taken")
		handles := []lock.Handle{acquire(t, l, "z6-a"), acquire(t, l, "z6-b"), acquire(t, l, "z6-c", lock.Shared())}
		got := make(chan lock.Handle, 1)
		go func() { // waits while the session ends, and goes on with another
			h, err := l.Acquire(t.Context(), "taken")
			if err != nil {
				t.Errorf("the waiter: %v", err)
			}
			got <- h
		}()
		time.Sleep(ttl / 20)
		e.expire(t, server.Addr())
		for _, h := range handles {
			select {
			case <-h.Lost():
			case <-time.After(time.Second):
				t.Errorf("%q is not lost a second after its session has ended: %v", h.Key(), h.Err())
			}
			matches(t, "Release", h.Release(t.Context()), lock.ErrLost)
		}
		again := acquire(t, l, "z6-a")
		token, _ := again.Token()
		if token <= last {
			t.Errorf("token %d after %d", token, last)
		}
		last = token
		release(t, again)
		release(t, taken)
		if h := <-got; h != nil {
			release(t, h)
		}
		if i == 1 {
			goroutines = runtime.NumGoroutine()
		}
	}
	until(t, "the end of what the sessions had", func() bool { return runtime.NumGoroutine() <= goroutines+3 })
}

// Somebody takes the session over, and leaves it open: what is on it is not ours alone any
// more.
func TestSessionTakenOver(t *testing.T) {
	t.Parallel()
	e := newEnsemble(t)
	var heard eavesdropper
	l := lockerOn(t, zklock.Config{Dial: heard.dial}, e.addr(e.follower))
	h := acquire(t, l, "z6")
	heard.resume(t, e.addr(e.leader)) // another server: ours is not told
	// Whether this side takes it back, or gives it up, what its handle says is true.
	for end := time.Now().Add(2 * ttl); time.Now().Before(end) && h.Err() == nil; time.Sleep(ttl / 50) {
	}
	other := lockerOn(t, zklock.Config{}, e.addr(e.third()))
	next, err := other.TryAcquire(t.Context(), "z6")
	if err == nil && h.Err() == nil {
		t.Error("two hold the lock")
	}
	t.Logf("the holder: %v; another: %v", h.Err(), err)
	if err == nil {
		release(t, next)
	}
	_ = h.Release(t.Context())
	release(t, acquire(t, l, "z6"))
}

// A TTL that the servers do not grant is refused, and not changed.
func TestTTLOutOfRange(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, testserver.Args("tickTime=1000"))
	for _, d := range []time.Duration{500 * time.Millisecond, time.Second, 1999 * time.Millisecond, 21 * time.Second, time.Minute, 24 * 24 * time.Hour} {
		_, err := lock.Open(t.Context(), fmt.Sprintf("zk://%s?ttl=%v", server.Addr(), d))
		matches(t, d.String(), err, lock.ErrInvalid)
		if err == nil || !strings.Contains(err.Error(), "grants a session of") {
			t.Errorf("%v: %v does not say what the server grants", d, err)
		}
		l, err := zklock.New([]string{server.Addr()}, zklock.Config{Config: lock.Config{TTL: d}})
		if err != nil {
			t.Fatal(err)
		}
		_, err = l.Acquire(t.Context(), "z6")
		matches(t, d.String(), err, lock.ErrInvalid)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, d := range []time.Duration{2 * time.Second, 20 * time.Second} {
		l, err := lock.Open(t.Context(), fmt.Sprintf("zk://%s?ttl=%v&tick=1s", server.Addr(), d))
		if err != nil {
			t.Fatal(err)
		}
		h := acquire(t, l, "z6")
		if v := h.Valid(); v < d/3-time.Second/2 || v > d*3/4-time.Second/2 {
			t.Errorf("with a session of %v, Valid is %v", d, v)
		}
		release(t, h)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A blip costs nothing.
func TestBlip(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	p := proxied(t, server.Addr())
	l := lockerOn(t, zklock.Config{}, p.Addr())
	h := acquire(t, l, "z6")
	for i := range 6 {
		switch i % 3 {
		case 0:
			p.Stall()
		case 1:
			p.Refuse()
			p.Cut()
		case 2:
			p.Cut()
		}
		time.Sleep(ttl / 6)
		p.Heal()
		time.Sleep(ttl / 2)
		if err := h.Err(); err != nil {
			t.Fatalf("after a blip: %v", err)
		}
	}
	release(t, h)
}

// What hinders is told at once, and named.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	stranger, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stranger.Close() })
	go func() { // speaks another protocol
		for {
			c, err := stranger.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = c.Close()
		}
	}()
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mute.Close() })
	for url, want := range map[string]string{
		"zk://127.0.0.1:1":                 "refused",
		"zk://127.0.0.1:1,127.0.0.1:2":     "refused",
		"zk://" + stranger.Addr().String(): "none of ZooKeeper's",
		"zk://" + mute.Addr().String():     "timeout",
		"zk://no-such-host.invalid:2181":   "no-such-host.invalid",
	} {
		began := time.Now()
		_, err := lock.Open(t.Context(), url+"?ttl=4s")
		matches(t, url, err, lock.ErrUnavailable)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %q", url, err, want)
		}
		if took := time.Since(began); took > 7*time.Second {
			t.Errorf("%s: took %v", url, took)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = lock.Open(ctx, "zk://"+mute.Addr().String())
	matches(t, "with a context", err, lock.ErrUnavailable, context.DeadlineExceeded)

	// The same through New, where Acquire tells.
	l := lockerOn(t, zklock.Config{}, "127.0.0.1:1")
	_, err = l.TryAcquire(t.Context(), "e3")
	matches(t, "TryAcquire", err, lock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("TryAcquire: %v does not say why", err)
	}
	began := time.Now()
	_, err = l.Acquire(t.Context(), "e3", lock.Wait(time.Second))
	matches(t, "Acquire", err, lock.ErrUnavailable)
	if took := time.Since(began); took < 900*time.Millisecond || took > 3*time.Second {
		t.Errorf("Acquire with Wait(1s) took %v", took)
	}

	// One of several is enough, wherever it stands.
	for range 4 {
		l, err := lock.Open(t.Context(), fmt.Sprintf("zk://%s,127.0.0.1:1,%s?ttl=4s", mute.Addr(), server.Addr()))
		if err != nil {
			t.Fatal(err)
		}
		release(t, acquire(t, l, "e3"))
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A server that is stopped holds nobody up, and the same Locker works when it goes on.
func TestServerHangs(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	l := lockerOn(t, zklock.Config{}, server.Addr())
	h := acquire(t, l, "e3")
	server.Pause()
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := l.Acquire(ctx, "e3-other")
	matches(t, "Acquire", err, context.DeadlineExceeded)
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("Acquire with a context of 300ms took %v", took)
	}
	_, err = l.Acquire(context.Background(), "e3-other", lock.Wait(ttl)) // on this goroutine
	matches(t, "Acquire", err, lock.ErrUnavailable)
	if took := time.Since(began); took > 2*ttl {
		t.Errorf("Acquire with Wait(%v) took %v", ttl, took)
	}
	<-h.Lost()
	server.Resume()
	_ = h.Release(t.Context())
	release(t, acquire(t, l, "e3"))
	release(t, acquire(t, l, "e3-other"))
}

// Everything is made with the ACL of those who have the credentials, and who has others is
// told so.
func TestCredentials(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	open := func(login string) (lock.Locker, error) {
		return lock.Open(t.Context(), fmt.Sprintf("zk://%s%s/secret?ttl=%v&tick=%v", login, server.Addr(), ttl, tick))
	}
	l, err := open("app:p%40ss%2Fw%3Ard@")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	h := acquire(t, l, "auth")
	direct := dial(t, server.Addr())
	for _, path := range []string{"/secret", "/secret/lock", "/secret/session", "/secret/lock/auth", nodeOfAny(t, server.Addr(), "app:p@ss/w:rd")} {
		acl, _, err := direct.GetACL(path)
		if err != nil && !errors.Is(err, zk.ErrNoAuth) || err == nil && (len(acl) != 1 || acl[0].Scheme != "digest" || !strings.HasPrefix(acl[0].ID, "app:")) {
			t.Errorf("%s is open to %+v, %v", path, acl, err)
		}
	}
	for _, login := range []string{"", "app:wrong@", "other:p%40ss%2Fw%3Ard@"} {
		_, err := open(login)
		if err == nil || errors.Is(err, lock.ErrUnavailable) || errors.Is(err, lock.ErrHeld) || !strings.Contains(err.Error(), "permissions") {
			t.Errorf("%q: %v, want an error about permissions", login, err)
		}
		if err != nil && (strings.Contains(err.Error(), "p@ss") || strings.Contains(err.Error(), "wrong")) {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	for _, text := range []string{
		fmt.Sprint(zklock.Config{Auth: []zklock.Auth{{"digest", "app:secret"}}}), fmt.Sprintf("%#v", &zklock.Auth{"digest", "app:secret"}),
	} {
		if strings.Contains(text, "secret") {
			t.Errorf("a password is shown: %s", text)
		}
	}
	stranger, err := zklock.New([]string{server.Addr()}, zklock.Config{Config: lock.Config{TTL: ttl}, Auth: []zklock.Auth{{"nosuch", "secret"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stranger.Close() })
	if _, err := stranger.Acquire(t.Context(), "auth"); err == nil || !strings.Contains(err.Error(), "credentials") || strings.Contains(err.Error(), "secret") {
		t.Errorf("with a scheme that the server does not know: %v", err)
	}

	// After a new connection the credentials are there again.
	time.Sleep(ttl / 2)
	server.Kill()
	server.Start()
	release(t, acquire(t, l, "auth-2"))
	_ = h.Release(t.Context())

	// Where the root exists but is not ours, nothing is done, and the error says why. The
	// connection from before the restart gives up whatever waits for it to come back.
	if _, err := dial(t, server.Addr()).Create("/closed", nil, zk.FlagPersistent, zk.WorldACL(zk.PermRead)); err != nil {
		t.Fatal(err)
	}
	closed, err := zklock.New([]string{server.Addr()}, zklock.Config{Config: lock.Config{TTL: ttl}, Root: "/closed", Tick: tick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closed.Close() })
	began := time.Now()
	_, err = closed.Acquire(t.Context(), "auth")
	if err == nil || errors.Is(err, lock.ErrUnavailable) || !strings.Contains(err.Error(), "permissions") {
		t.Errorf("a root that may not be written to: %v", err)
	}
	if took := time.Since(began); took > ttl {
		t.Errorf("and told after %v", took)
	}
}

// nodeOfAny returns the node in line for "auth", as seen with credentials.
func nodeOfAny(t *testing.T, addr, credentials string) string {
	t.Helper()
	c := dial(t, addr)
	if err := c.AddAuth("digest", []byte(credentials)); err != nil {
		t.Fatal(err)
	}
	return nodeOf(t, c, "/secret", "auth")
}

// The session expires before it could be prepared, while there is no connection: nobody has
// been granted anything on it, the Locker goes on with another, and nothing asks for the old
// one any more.
func TestSessionExpiresBeforeItIsUsed(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	p := proxied(t, server.Addr())
	var e eavesdropper
	l := lockerOn(t, zklock.Config{Dial: e.dial}, p.Addr())
	struck := p.LoseReplyFunc(func(packet []byte) bool {
		create := isRequest(opCreate)(packet) // of the session's node
		if create {
			e.keepAway(true)
		}
		return create
	})
	got := make(chan lock.Handle, 1)
	go func() {
		h, err := l.Acquire(t.Context(), "z6")
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	<-struck
	expired := e.session()
	e.expire(t, server.Addr())
	select {
	case h := <-got:
		if h != nil {
			release(t, h)
		}
	case <-time.After(5 * ttl):
		t.Fatal("the Locker does not go on with another session")
	}
	asked := e.handshakes(expired)
	time.Sleep(ttl / 4) // tries are a fiftieth of the TTL apart
	if more := e.handshakes(expired) - asked; asked == 0 || more > 0 {
		t.Errorf("%d handshakes asked for the session that had expired, and %d after it was replaced; want one, and none", asked, more)
	}
}

// saboteur has one write on a connection fail, and counts connections.
type saboteur struct {
	mu    sync.Mutex
	conns []net.Conn
	armed bool
	fail  int // the write on a new connection that fails, if armed
}

func (s *saboteur) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := &sabotaged{Conn: conn}
	if s.armed {
		s.armed, c.fail = false, s.fail
	}
	s.conns = append(s.conns, c)
	return c, nil
}

// cut closes the connection there is, and has that write on the next one fail.
func (s *saboteur) cut(fail int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.armed, s.fail = true, fail
	_ = s.conns[len(s.conns)-1].Close()
}

func (s *saboteur) dialled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

type sabotaged struct {
	net.Conn
	writes, fail int // of one goroutine at a time
}

func (c *sabotaged) Write(b []byte) (int, error) {
	if c.writes++; c.writes == c.fail {
		return 0, errors.New("sabotage")
	}
	return c.Conn.Write(b)
}

// A connection breaks again while it is being made anew: at the handshake, at the
// credentials, which are sent next, and after. It costs no lock.
func TestNewConnectionBreaks(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	for fail := 1; fail <= 4; fail++ {
		var s saboteur
		l := lockerOn(t, zklock.Config{Dial: s.dial, Auth: []zklock.Auth{{"digest", "app:secret"}}, Root: "/broken"}, server.Addr())
		h := acquire(t, l, fmt.Sprint("held-", fail))
		before := s.dialled()
		s.cut(fail)
		until(t, "another connection", func() bool {
			h, err := l.TryAcquire(t.Context(), fmt.Sprint("other-", fail))
			if err == nil {
				release(t, h)
			}
			return err == nil && s.dialled() >= before+2
		})
		if err := h.Err(); err != nil {
			t.Errorf("write %d failed: %v", fail, err)
		}
		_ = h.Release(t.Context())
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A server greets, and closes each connection at its first request: it is not asked again
// without a pause, and who waits for it is told.
func TestServerHangsUp(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t)
	release(t, acquire(t, lockerOn(t, zklock.Config{}, server.Addr()), "hangs-up")) // it is well
	var dialled atomic.Int64
	var fair atomic.Bool
	l := lockerOn(t, zklock.Config{Dial: func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialled.Add(1)
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil || fair.Load() {
			return conn, err
		}
		return &sabotaged{Conn: conn, fail: 2}, nil
	}}, server.Addr())
	began := time.Now()
	_, err := l.Acquire(t.Context(), "hangs-up", lock.Wait(ttl/5))
	matches(t, "Acquire", err, lock.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "closed after the handshake") {
		t.Errorf("Acquire: %v does not say why", err)
	}
	if most := int64(time.Since(began)/(ttl/50)) + 3; dialled.Load() > most {
		t.Errorf("%d connections in %v, want at most %d", dialled.Load(), time.Since(began), most)
	}
	fair.Store(true)
	release(t, acquire(t, l, "hangs-up"))
}
