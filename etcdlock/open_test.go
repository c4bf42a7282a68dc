package etcdlock_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/namespace"

	"github.com/holdfast-go/holdfast/etcdlock"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

func TestURLs(t *testing.T) {
	s := testserver.Etcd(t)
	direct := dial(t, s.Addr())
	_, port, _ := net.SplitHostPort(s.Addr())
	for url, prefix := range map[string]string{
		"etcd://" + s.Addr():                                                              "/holdfast/",
		"etcd://" + s.Addr() + "/":                                                        "/holdfast/",
		"etcd://" + s.Addr() + "/locks":                                                   "/locks/",
		"etcd://" + s.Addr() + "/locks/":                                                  "/locks/",
		"etcd://" + s.Addr() + "//a//b":                                                   "//a//b/",
		"ETCD://localhost:" + port + "/x":                                                 "/x/",
		"etcd://" + s.Addr() + "," + s.Addr() + "/several":                                "/several/",
		"etcd://[::ffff:127.0.0.1]:" + port + "/six":                                      "/six/",
		"etcd://" + s.Addr() + ",localhost/one-has-a-port":                                "/one-has-a-port/",
		"etcd://[::ffff:127.0.0.1]:" + port + ",[::1]:" + port + "," + s.Addr() + "/many": "/many/",
		"etcd://" + s.Addr() + "/?require=fencing,fifo":                                   "/holdfast/",
		"etcd://" + s.Addr() + "/?ttl=30s&require=leased":                                 "/holdfast/",
		"etcd://" + s.Addr() + "/%D0%BF%D1%83%D1%82%D1%8C":                                "/путь/",
		"etcd://localhost:" + port + ",127.0.0.1:" + port:                                 "/holdfast/",
		"etcd://" + s.Addr() + "/?require=fencing,leased":                                 "/holdfast/",
		"etcd://" + s.Addr() + "/?owner=me&token_base=10000":                              "/holdfast/",
	} {
		l, err := lock.Open(t.Context(), url)
		if err != nil {
			t.Errorf("Open(%q): %v", url, err)
			continue
		}
		h := must(t)(l.TryAcquire(t.Context(), "key"))
		if n := names(t, direct, prefix+"{key}/"); len(n) != 1 {
			t.Errorf("by %q, there is %q, want a name that begins with %q", url, names(t, direct, "/"), prefix)
		}
		release(t, h)
		if err := l.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	}
}

func TestURLsThatAreWrong(t *testing.T) {
	const secret = "s3cr3t"
	cert, key, _ := certificate(t, "127.0.0.1")
	for url, want := range map[string]string{
		"etcd:localhost":                                       "no // after its scheme",
		"etcd://u:" + secret + "@localhost/#x":                 "has a #",
		"etcd://h1,,h2":                                        "empty host",
		"etcd://h1:2379,,[::1]":                                "empty host",
		"etcd://h1:,h2":                                        "not understood",
		"etcd://,":                                             "empty host",
		"etcd://u:" + secret + "@h/?colour=red":                `"colour"`,
		"etcd://u:" + secret + "@h/?ca=/x":                     "etcds://",
		"etcds://u:" + secret + "@h/?ca=/does/not/exist":       "ca:",
		"etcds://u:" + secret + "@h/?ca=" + key:                "no certificate in",
		"etcds://u:" + secret + "@h/?cert=" + cert:             "both cert and key",
		"etcds://u:" + secret + "@h/?cert=" + cert + "&key=/x": "cert and key:",
		"etcd://u:" + secret + "@h/a%7Bb":                      "brace",
		"etcd://u:" + secret + "@h/?ttl=1h&ttl=2h":             "once",
		"etcd://u:" + secret + "@h/?ttl=1ns":                   "ttl",
	} {
		_, err := lock.Open(t.Context(), url)
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("Open(%q): %v, want ErrInvalid with %q, and no password", url, err, want)
		}
	}
	if _, err := etcdlock.New(nil, etcdlock.Config{}); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("New without a client: %v, want ErrInvalid", err)
	}
	if _, err := etcdlock.New(&clientv3.Client{}, etcdlock.Config{Prefix: "a}"}); !errors.Is(err, lock.ErrInvalid) {
		t.Errorf("New with a brace in the prefix: %v, want ErrInvalid", err)
	}
}

// What is wrong with a connection is named, and at once.
func TestOpenSaysWhy(t *testing.T) {
	cert, key, ca := certificate(t, "127.0.0.1")
	encrypted := testserver.Etcd(t, testserver.TLS(cert, key))
	asks := testserver.Etcd(t, testserver.TLS(cert, key), testserver.Args("--auth-token-ttl", "60"))
	plain := testserver.Etcd(t)
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	otherCert, otherKey, _ := certificate(t, "127.0.0.1")
	badName, badNameKey, badNameCA := certificate(t, "elsewhere.example")
	elsewhere := testserver.Etcd(t, testserver.TLS(badName, badNameKey))
	for url, want := range map[string]struct {
		text        string
		unavailable bool
	}{
		"etcds://" + encrypted.Addr():                      {"certificate", false},
		"etcds://" + encrypted.Addr() + "?ca=" + otherCert: {"certificate", false},
		"etcds://" + elsewhere.Addr() + "?ca=" + badNameCA: {"certificate", false},
		"etcds://" + plain.Addr():                          {"does the server speak TLS", true},
		"etcd://" + encrypted.Addr():                       {"etcds://", true},
		"etcd://" + gone.Addr().String():                   {"refused", true},
		"etcds://" + gone.Addr().String():                  {"refused", true},
		"etcd://no-such-host.invalid":                      {"no-such-host", true},
	} {
		took(t, "Open of "+url, 6*time.Second, func() {
			l, err := lock.Open(t.Context(), url)
			if err == nil {
				_ = l.Close()
			}
			if err == nil || !strings.Contains(err.Error(), want.text) || errors.Is(err, lock.ErrUnavailable) != want.unavailable {
				t.Errorf("Open(%q): %v, want %q, and ErrUnavailable: %t", url, err, want.text, want.unavailable)
			}
		})
	}
	for _, url := range []string{
		"etcds://" + encrypted.Addr() + "?ca=" + ca,
		"etcds://" + asks.Addr() + "?ca=" + ca + "&cert=" + otherCert + "&key=" + otherKey,
	} {
		release(t, must(t)(openURL(t, url).TryAcquire(t.Context(), "one")))
	}

	// An application's own client waits for a connection, and tells no reason by itself.
	for _, c := range []struct {
		addr, want string
	}{{"https://" + encrypted.Addr(), "certificate"}, {"http://" + gone.Addr().String(), "refused"}, {"https://" + plain.Addr(), "handshake failed"}} {
		l := lockerOn(t, dial(t, c.addr), etcdlock.Config{Config: lock.Config{TTL: 3 * time.Second}})
		took(t, "a try", 6*time.Second, func() {
			_, err := l.TryAcquire(t.Context(), "one")
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("TryAcquire at %s: %v, want %q", c.addr, err, c.want)
			}
		})
	}
}

// A server that asks for a certificate knows its user by it.
func TestClientCertificate(t *testing.T) {
	cert, key, ca := certificate(t, "127.0.0.1")
	mine, mineKey, mineCA := certificate(t, "app")
	s := testserver.Etcd(t, testserver.TLS(cert, key), testserver.Args("--trusted-ca-file", mineCA))
	url := "etcds://" + s.Addr() + "?ca=" + ca
	_, err := lock.Open(t.Context(), url)
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("Open without a certificate: %v, want that the server asks for one", err)
	}
	release(t, must(t)(openURL(t, url+"&cert="+mine+"&key="+mineKey).TryAcquire(t.Context(), "one")))
}

// A client may be in a namespace: then its locks are, too.
func TestNamespace(t *testing.T) {
	s := testserver.Etcd(t)
	direct, c := dial(t, s.Addr()), dial(t, s.Addr())
	c.KV = namespace.NewKV(c.KV, "tenant-1:")
	c.Watcher = namespace.NewWatcher(c.Watcher, "tenant-1:")
	c.Lease = namespace.NewLease(c.Lease, "tenant-1:")
	a, b := lockerOn(t, c, etcdlock.Config{}), lockerOn(t, c, etcdlock.Config{})
	outside := lockerOn(t, direct, etcdlock.Config{})
	release(t, must(t)(outside.TryAcquire(t.Context(), "one")))
	h := must(t)(a.Acquire(t.Context(), "one"))
	other := must(t)(outside.TryAcquire(t.Context(), "one"))
	if n := names(t, direct, "tenant-1:/holdfast/{one}/"); len(n) != 1 {
		t.Errorf("in the namespace: %q", n)
	}
	if _, err := b.TryAcquire(t.Context(), "one"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("TryAcquire in the same namespace: %v, want ErrHeld", err)
	}
	next := wait(t, b, "one")
	until(t, func() bool { return waiters(t, a, "one") == 1 })
	release(t, h)
	h = next()
	time.Sleep(300 * time.Millisecond)
	if _, err := direct.Delete(t.Context(), "tenant-1:/holdfast/{one}/", clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
	took(t, "the loss", 3*time.Second, func() { <-h.Lost() })
	if err := other.Err(); err != nil {
		t.Errorf("the lock outside: %v", err)
	}
	release(t, other)
}

// A client that was closed under a Locker is named.
func TestClosedClient(t *testing.T) {
	s := testserver.Etcd(t)
	c := dial(t, s.Addr())
	l := lockerOn(t, c, etcdlock.Config{Config: lock.Config{TTL: 3 * time.Second}})
	h := must(t)(l.TryAcquire(t.Context(), "one"))
	c.Close()
	took(t, "TryAcquire", 6*time.Second, func() {
		if _, err := l.TryAcquire(t.Context(), "two"); err == nil || !strings.Contains(err.Error(), "must stay open") {
			t.Errorf("TryAcquire on a closed client: %v, want what it needs", err)
		}
	})
	took(t, "the loss", 4*time.Second, func() { <-h.Lost() })
	took(t, "Close", 3*time.Second, func() { _ = l.Close() })
}

// certificate writes a certificate of its own making for a name or an address, its key, and
// the certificate as its own authority.
func certificate(t *testing.T, name string) (certFile, keyFile, caFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{
		certFile: {Type: "CERTIFICATE", Bytes: cert}, keyFile: {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile, certFile
}
