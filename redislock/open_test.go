package redislock_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/redislock"
)

func open(t *testing.T, rawURL string) (lock.Locker, error) {
	t.Helper()
	l, err := lock.Open(t.Context(), rawURL)
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

func TestOpen(t *testing.T) {
	s := testserver.Redis(t)
	c := dial(t, s.Addr(), func(o *redis.Options) { o.DB = 3 })
	l, err := open(t, "redis://"+s.Addr()+"/3?prefix=app&ttl=30s&owner=me&require=fencing,leased")
	if err != nil {
		t.Fatal(err)
	}
	h, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if v, _ := do(t, c, "get", "app:{k}").(string); !strings.HasSuffix(v, " me") {
		t.Errorf("the lock in database 3 is %q, want one of me", v)
	}
	if left := do(t, c, "pttl", "app:{k}").(int64); left > 30000 || left < 20000 {
		t.Errorf("PTTL %d, want that of 30s", left)
	}
	other := lockerOn(t, c, redislock.Config{})
	g, err := other.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Errorf("under another prefix: %v", err)
	} else if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if n := do(t, c, "client", "list"); strings.Count(n.(string), "\n") != 1 {
		t.Errorf("connections are left after Close:\n%s", n)
	}
}

func TestNewDoesNotCloseTheClient(t *testing.T) {
	c := dial(t, testserver.Redis(t).Addr())
	l, err := redislock.New(c, redislock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	do(t, c, "ping")
}

func TestPasswords(t *testing.T) {
	s := testserver.Redis(t)
	admin := dial(t, s.Addr())
	var ascii strings.Builder
	for c := rune(0x20); c < 0x7f; c++ {
		ascii.WriteRune(c)
	}
	passwords := []string{ascii.String(), "p@ss:w/ord?#[]%25&=+ ;", "%", "%41", "über 世界", "\x01\xff\n", "@", ":", "/"}
	for _, password := range passwords {
		for _, user := range []string{"", "app:@/?#[]%&=+;"} {
			do(t, admin, "acl", "setuser", cmp.Or(user, "default"), "reset", "on", ">"+password, "~*", "+@all")
			u := url.URL{Scheme: "redis", User: url.UserPassword(user, password), Host: s.Addr()}
			if _, err := open(t, u.String()); err != nil {
				t.Errorf("user %q, password %q: %v", user, password, err)
			}

			u.User = url.UserPassword(user, "not"+password)
			_, err := open(t, u.String())
			if err == nil || !strings.Contains(err.Error(), "WRONGPASS") || !strings.Contains(err.Error(), "correct user and password") {
				t.Errorf("user %q, wrong password: %v, want what the server says", user, err)
			} else if len(password) > 1 && strings.Contains(err.Error(), password) {
				t.Errorf("the error shows the password: %v", err)
			}
			u.User = nil
			if _, err := open(t, u.String()); user == "" && (err == nil || !strings.Contains(err.Error(), "NOAUTH")) {
				t.Errorf("no password: %v, want NOAUTH", err)
			}
		}
	}
}

// Passwords whose special characters were not encoded end up anywhere in the URL.
func TestBadURLsDoNotShowPasswords(t *testing.T) {
	urls := []string{
		"redis://app@localhost",
		"redis://app:@localhost",
		"redis://s3cret@localhost",
		"redis://:pass#s3cret@localhost/0",
		"redis://:12#s3cret@localhost/0",
		"redis://:pass?s3cret@localhost/0",
		"redis://:12?s3cret@localhost/0",
		"redis://:12?ttl=1s&s3cret@localhost/0",
		"redis://:12?s3cret:x",
		"redis://:12?prefix=1&s3cret/x",
		"redis://:pass/s3cret@localhost/0",
		"redis://:12/s3cret@localhost/0",
		"redis://app:s3cret@localhost:x/0",
		"redis://app:s3cret%zz@localhost/0",
		"redis://app:s3cret@localhost/zero",
		"redis://app:s3cret@localhost/-1",
		"redis://app:s3cret@localhost/1/2",
		"redis://app:s3cret@localhost/99999999999",
		"redis://app:s3cret@a,b/0",
		"redis://app:s3cret@a:1,b:2/0",
		"redis://app:s3cret@localhost/0?unknown=1",
		"redis://app:s3cret@localhost/0?prefix=a&prefix=b",
		"redis://app:s3cret@localhost/0?prefix=%7B",
		"redis://app:s3cret@localhost/0?ttl=1500us",
		"redis://app:s3cret@localhost/0?ttl=1000.5ms",
		"redis:s3cret@localhost",
		"redis:/s3cret@localhost",
	}
	for _, u := range urls {
		_, err := open(t, u)
		matches(t, u, err, lock.ErrInvalid)
		if err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: the error shows the password: %v", u, err)
		}
	}
}

func TestConfigEdges(t *testing.T) {
	c := dial(t, testserver.Redis(t).Addr())
	for _, bad := range []time.Duration{
		-1, -time.Second, 1, 999 * time.Microsecond, time.Millisecond, 100*time.Millisecond + 1, 15*time.Second + 500*time.Microsecond,
		10000 * time.Hour, 1<<63 - 1, -1 << 63,
	} {
		_, err := redislock.New(c, redislock.Config{Config: lock.Config{TTL: bad}})
		matches(t, fmt.Sprint(bad), err, lock.ErrInvalid)
	}
	for _, good := range []time.Duration{0, 1501 * time.Millisecond, 25 * 24 * time.Hour, lock.MaxTTL} {
		l := lockerOn(t, c, redislock.Config{Config: lock.Config{TTL: good}})
		h, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Errorf("%v: %v", good, err)
			continue
		}
		want := good
		if want == 0 {
			want = lock.DefaultTTL
		}
		left := time.Duration(do(t, c, "pttl", "holdfast:{k}").(int64)) * time.Millisecond
		if left > want || left < want/2 {
			t.Errorf("%v: the server ends the lease after %v", good, left)
		}
		if err := h.Release(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if _, err := redislock.NewDriver(c, redislock.Config{Config: lock.Config{TTL: lock.MinTTL}}); err != nil {
		t.Errorf("%v: %v", lock.MinTTL, err)
	}
	for _, prefix := range []string{"{", "a}b", "{x}", "%", "\x00", "\xff"} {
		_, err := redislock.New(c, redislock.Config{Prefix: prefix})
		matches(t, fmt.Sprintf("prefix %q", prefix), err, lock.ErrInvalid)
	}
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, HeartbeatFrequency: time.Hour})
	defer ring.Close()
	for _, bad := range []redis.UniversalClient{nil, ring} {
		_, err := redislock.New(bad, redislock.Config{})
		matches(t, fmt.Sprintf("%T", bad), err, lock.ErrInvalid)
	}
}

func TestOpenWhereNobodyListens(t *testing.T) {
	s := testserver.Redis(t)
	s.Kill()
	_, err := open(t, "redis://:s3cret@"+s.Addr())
	matches(t, "no server", err, lock.ErrUnavailable)

	s.Start()
	s.Pause()
	began := time.Now()
	_, err = open(t, "redis://:s3cret@"+s.Addr()+"?ttl=3s")
	matches(t, "a mute server", err, lock.ErrUnavailable)
	if took := time.Since(began); took > 8*time.Second { // five, and a busy machine
		t.Errorf("a mute server held Open for %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = lock.Open(ctx, "redis://"+s.Addr())
	matches(t, "a mute server and a context", err, lock.ErrUnavailable, context.DeadlineExceeded)
	s.Resume()

	f := newFake(t, func([]string) string { return "-LOADING Redis is loading the dataset in memory\r\n" })
	_, err = open(t, "redis://"+f.addr)
	matches(t, "a server that is loading", err, lock.ErrUnavailable)
	if err != nil && !strings.Contains(err.Error(), "LOADING") {
		t.Errorf("%v, want what the server says", err)
	}
}

func TestOpenOverTLS(t *testing.T) {
	encrypted := listenTLS(t)
	closes := newFake(t, func([]string) string { return "" })
	waits := testserver.Redis(t) // for the end of a line, which a TLS client does not send
	for _, test := range []struct{ url, want string }{
		{"rediss://:s3cret@" + encrypted, "check the certificates"},
		{"redis://:s3cret@" + encrypted, "want TLS"},
		{"rediss://:s3cret@" + closes.addr, "speak TLS"},
		{"rediss://:s3cret@" + waits.Addr() + "?ttl=1s", "TLS"},
	} {
		_, err := open(t, test.url)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want an error with %q", test.url, err, test.want)
		}
	}
}

// listenTLS accepts connections with a certificate of its own making.
func listenTLS(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	t.Cleanup(func() { l.Close(); running.Wait() })
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).HandshakeContext(t.Context())
			conn.Close()
		}
	})
	return l.Addr().String()
}

// The operator is told of a server that may drop locks.
func TestWarnsOfEviction(t *testing.T) {
	s := testserver.Redis(t, testserver.Args("--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"))
	c := dial(t, s.Addr())
	for _, policy := range []string{"volatile-lru", "noeviction"} {
		do(t, c, "config", "set", "maxmemory-policy", policy)
		var warnings []error
		cfg := lock.Config{Observe: func(_ context.Context, e lock.Event) {
			if e.Kind == lock.Warning {
				warnings = append(warnings, e.Err)
			}
		}}
		u := &url.URL{Scheme: "redis", Host: s.Addr()}
		l, err := redislock.Open(t.Context(), u, cfg)
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		if (len(warnings) == 1 && strings.Contains(warnings[0].Error(), policy)) != (policy != "noeviction") {
			t.Errorf("%s: warnings %v", policy, warnings)
		}
	}
}
