package testserver_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestEtcdKeepsItsDataOverKill(t *testing.T) {
	s := testserver.Etcd(t, testserver.Durable())
	if !s.CanFault() {
		t.Skip("needs a server of its own, and HOLDFAST_TEST_ETCD names one")
	}
	if _, err := etcd(t.Context(), "http", s.Addr(), "put", map[string]string{"key": "key", "value": "value"}); err != nil {
		t.Fatal(err)
	}
	s.Pause()
	paused, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got, err := etcd(paused, "http", s.Addr(), "range", map[string]string{"key": "key"}); err == nil {
		t.Errorf("a read while paused: %q, want no answer", got)
	}
	s.Resume()
	s.Kill()
	if _, err := etcd(t.Context(), "http", s.Addr(), "range", map[string]string{"key": "key"}); err == nil {
		t.Error("a read after Kill was answered")
	}
	s.Start()
	if got, err := etcd(t.Context(), "http", s.Addr(), "range", map[string]string{"key": "key"}); got != "value" {
		t.Errorf("a read after Kill and Start: %q, %v, want value", got, err)
	}
}

func TestEtcdCluster(t *testing.T) {
	var routes int
	routed := func(_, _ int, addr string) string {
		routes++
		return addr
	}
	for name, route := range map[string]func(int, int, string) string{"direct": nil, "routed": routed} {
		t.Run(name, func(t *testing.T) {
			servers := testserver.EtcdCluster(t, 3, route, testserver.Durable())
			for i, s := range servers {
				value := fmt.Sprint("value-", i)
				if _, err := etcd(t.Context(), "http", s.Addr(), "put", map[string]string{"key": "key", "value": value}); err != nil {
					t.Fatal(err)
				}
				for _, other := range servers {
					if got, err := etcd(t.Context(), "http", other.Addr(), "range", map[string]string{"key": "key"}); got != value {
						t.Errorf("what member %d was given, another reads as %q: %v", i, got, err)
					}
				}
			}
			servers[0].Kill()
			servers[0].Start()
			for _, s := range servers {
				s.Kill()
			}
			testserver.StartAll(servers...)
			if got, err := etcd(t.Context(), "http", servers[0].Addr(), "range", map[string]string{"key": "key"}); got != "value-2" {
				t.Errorf("after a restart of all: %q, %v", got, err)
			}
		})
	}
	if routes != 6 {
		t.Errorf("route was asked %d times", routes)
	}
}

func TestEtcdOverTLS(t *testing.T) {
	cert, key := writeCertificate(t)
	s := testserver.Etcd(t, testserver.TLS(cert, key))
	if _, err := etcd(t.Context(), "https", s.Addr(), "put", map[string]string{"key": "key", "value": "value"}); err != nil {
		t.Error(err)
	}
	if _, err := etcd(t.Context(), "http", s.Addr(), "range", map[string]string{"key": "key"}); err == nil {
		t.Error("a read without TLS was answered")
	}
}

func TestEtcdOfTheEnvironment(t *testing.T) {
	own := testserver.Etcd(t)
	t.Setenv("HOLDFAST_TEST_ETCD", own.Addr())
	tb := run(t, func(tb testing.TB) {
		if s := testserver.Etcd(tb); s.Addr() != own.Addr() || s.CanFault() {
			t.Errorf("Etcd: a server on %s, want that of the environment, %s, and no faults", s.Addr(), own.Addr())
		}
	})
	if tb.failed != "" || tb.skipped != "" {
		t.Errorf("Etcd: failed %q, skipped %q", tb.failed, tb.skipped)
	}
	tb = run(t, func(tb testing.TB) { testserver.Etcd(tb, testserver.TLS("cert", "key")) })
	if !strings.Contains(tb.skipped, "HOLDFAST_TEST_ETCD") {
		t.Errorf("Etcd with a certificate: skipped %q, want the reason", tb.skipped)
	}
}

// etcd makes a request by the server's JSON gateway, with the values of fields in base64,
// and returns the value of the key that was read, if any.
func etcd(ctx context.Context, scheme, addr, method string, fields map[string]string) (string, error) {
	for name, value := range fields {
		fields[name] = base64.StdEncoding.EncodeToString([]byte(value))
	}
	body, err := json.Marshal(fields)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+addr+"/v3/kv/"+method, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var answer struct{ Kvs []struct{ Value []byte } }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s: %w", method, resp.Status, err)
	}
	if len(answer.Kvs) == 0 {
		return "", nil
	}
	return string(answer.Kvs[0].Value), nil
}

// writeCertificate writes a certificate of its own making for 127.0.0.1, and its key.
func writeCertificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
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
	return certFile, keyFile
}
