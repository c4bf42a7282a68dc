package pglock_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/conformance"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
	"github.com/holdfast-go/holdfast/pglock"
)

func TestOpen(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "CREATE DATABASE app")
	l, err := open(t, "postgresql://"+testserver.PostgresUser+"@"+s.Addr()+"/app?sslmode=disable&namespace=mine&ttl=30s&owner=me&require=fencing,shared")
	if err != nil {
		t.Fatal(err)
	}
	h := tryAcquire(t, l, "k")
	info, err := l.Inspect(t.Context(), "k")
	if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != "me" {
		t.Errorf("Inspect: %+v, %v; want one holder, me", info, err)
	}
	if got := value[string](t, admin, "SELECT datname FROM pg_stat_activity WHERE application_name = 'holdfast me'"); got != "app" {
		t.Errorf("the session is in database %q, want app", got)
	}
	for _, other := range []string{urlOf(s, "namespace=mine"), "postgres://" + testserver.PostgresUser + "@" + s.Addr() + "/app?sslmode=disable"} {
		o, err := open(t, other)
		if err != nil {
			t.Fatal(err)
		}
		release(t, tryAcquire(t, o, "k")) // another database, or another namespace
	}
	release(t, h)
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	until(t, func() bool {
		return value[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'holdfast me'") == 0
	})
}

func TestPasswords(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	// The superuser is let in as he is; everybody else has to give a password.
	exec(t, admin, "CREATE TEMP TABLE hba (line text)")
	path := value[string](t, admin, "SHOW hba_file")
	exec(t, admin, fmt.Sprintf(`COPY (SELECT 'host all postgres all trust' UNION ALL SELECT 'host all all all scram-sha-256') TO '%s'`, path))
	exec(t, admin, "SELECT pg_reload_conf()")
	var ascii strings.Builder
	for c := rune(0x20); c < 0x7f; c++ {
		ascii.WriteRune(c)
	}
	for i, password := range []string{ascii.String(), "p@ss:w/ord?#[]%25&=+ ;", "%", "%41", "über 世界", "@", ":", "/", "'", `\`, `it's \ "x"`} {
		user := []string{"app", "app:@/?#[]%&=+;'\\ \""}[i%2]
		exec(t, admin, "DROP ROLE IF EXISTS "+pgx.Identifier{user}.Sanitize())
		exec(t, admin, fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", pgx.Identifier{user}.Sanitize(), strings.ReplaceAll(password, "'", "''")))
		u := url.URL{Scheme: "postgres", User: url.UserPassword(user, password), Host: s.Addr(), Path: "/postgres", RawQuery: "sslmode=disable&token=off"}
		until(t, func() bool { // the server reads its file when it comes to it
			_, err := open(t, strings.Replace(u.String(), url.UserPassword(user, password).String(), url.UserPassword(user, "wrong").String(), 1))
			return err != nil
		})
		if _, err := open(t, u.String()); err != nil {
			t.Errorf("user %q, password %q: %v", user, password, err)
		}
		u.User = url.UserPassword(user, "not"+password)
		_, err := open(t, u.String())
		if err == nil || !strings.Contains(err.Error(), "28P01") || !strings.Contains(err.Error(), "correct user and password") {
			t.Errorf("user %q, wrong password: %v, want what the server says", user, err)
		} else if len(password) > 1 && strings.Contains(err.Error(), password) {
			t.Errorf("the error shows the password: %v", err)
		}
	}
}

// Passwords whose special characters were not encoded end up anywhere in the URL.
func TestBadURLsDoNotShowPasswords(t *testing.T) {
	urls := []string{
		"postgres://app:pass#s3cret@localhost/db",
		"postgres://app:12#s3cret@localhost/db",
		"postgres://app:pass?s3cret@localhost/db",
		"postgres://app:12?s3cret@localhost/db",
		"postgres://app:12?ttl=1s&s3cret@localhost/db",
		"postgres://app:12?s3cret:x",
		"postgres://app:12?namespace=1&s3cret/x",
		"postgres://app:pass/s3cret@localhost/db",
		"postgres://app:12/s3cret@localhost/db",
		"postgres://app:s3cret@localhost:x/db",
		"postgres://app:s3cret%zz@localhost/db",
		"postgres://app:s3cret@localhost/a/b",
		"postgres://app:s3cret@localhost:99999/db",
		"postgres://app:s3cret@localhost/db?unknown=1",
		"postgres://app:s3cret@localhost/db?application_name=x",
		"postgres://app:s3cret@localhost/db?password=x",
		"postgres://app:s3cret@localhost/db?namespace=a&namespace=b",
		"postgres://app:s3cret@localhost/db?namespace=%00",
		"postgres://app:s3cret@localhost/db?schema=%00",
		"postgres://app:s3cret@localhost/db?schema=" + strings.Repeat("x", 64),
		"postgres://app:s3cret@localhost/db?token=no",
		"postgres://app:s3cret@localhost/db?wait_conns=-1",
		"postgres://app:s3cret@localhost/db?wait_conns=1001",
		"postgres://app:s3cret@localhost/db?ttl=600h",
		"postgres://app:s3cret@localhost/db?sslmode=nonsense",
		"postgres://app:s3cret@localhost/db?sslmode=verify-full&sslrootcert=/no/such/file",
		"postgres:s3cret@localhost",
		"postgres:/s3cret@localhost",
	}
	for _, u := range urls {
		_, err := open(t, u)
		matches(t, u, err, lock.ErrInvalid)
		if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "pass/")) {
			t.Errorf("%s: the error shows the password: %v", u, err)
		}
	}
}

func TestOpenWhereNobodyListens(t *testing.T) {
	s := testserver.Postgres(t)
	u := "postgres://" + testserver.PostgresUser + ":s3cret@" + s.Addr() + "/postgres?sslmode=disable&ttl=3s"
	s.Kill()
	_, err := open(t, u)
	matches(t, "no server", err, lock.ErrUnavailable)
	s.Start()
	s.Pause()
	began := time.Now()
	_, err = open(t, u)
	matches(t, "a mute server", err, lock.ErrUnavailable)
	if took := time.Since(began); took > 13*time.Second { // ten, and a busy machine
		t.Errorf("a mute server held Open for %v", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = lock.Open(ctx, u)
	matches(t, "a mute server and a context", err, lock.ErrUnavailable, context.DeadlineExceeded)
	s.Resume()
	for query, want := range map[string]string{
		"/nosuchdatabase?sslmode=disable": "choose a database that the server has",
		"/postgres?sslmode=require":       "TLS",
	} {
		_, err := open(t, "postgres://"+testserver.PostgresUser+"@"+s.Addr()+query)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", query, err, want)
		}
	}
}

func TestNewIsChecked(t *testing.T) {
	_, err := pglock.New(nil, pglock.Config{})
	matches(t, "no pool", err, lock.ErrInvalid)
	_, err = pglock.New(nil, pglock.Config{Config: lock.Config{TTL: -1}})
	matches(t, "a bad TTL", err, lock.ErrInvalid)
}

func TestOwners(t *testing.T) {
	for owner, shown := range map[string]string{
		"host-1:4711:nightly":   "",
		" ":                     "",
		"100% ~é日本":             "",
		"a~":                    "",
		strings.Repeat("x", 53): "",
		strings.Repeat("x", 54): "nobody", // what does not fit is not taken for a whole
		strings.Repeat("é", 20): "nobody",
	} {
		name := pglock.ApplicationName(owner)
		if len(name) > 63 || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q: the name %q is not 63 bytes of ASCII", owner, name)
		}
		want := strings.TrimSuffix(cmp.Or(shown, owner), "nobody")
		if got := pglock.OwnerOf(name); got != want {
			t.Errorf("%q is shown as %q by %q, want %q", owner, got, name, want)
		}
	}
	for _, foreign := range []string{"", "psql", "holdfast", "holdfast a%", "holdfast %zz"} {
		if got := pglock.OwnerOf(foreign); got != "" {
			t.Errorf("%q is said to be of %q", foreign, got)
		}
	}
}

// Over TLS the session reads and writes at once as it does without; and a certificate that
// nobody vouches for is told.
func TestOpenOverTLS(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	cert, key := certificate(t)
	dir := value[string](t, admin, "SHOW data_directory")
	for name, text := range map[string]string{"cert.pem": cert, "key.pem": key} { // the server's own
		exec(t, admin, fmt.Sprintf("COPY (SELECT unnest(string_to_array('%s', E'\\n'))) TO '%s/%s'", strings.TrimSpace(text), dir, name))
	}
	if err := os.Chmod(filepath.Join(dir, "key.pem"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, setting := range []string{"ssl_cert_file = 'cert.pem'", "ssl_key_file = 'key.pem'", "ssl = on"} {
		exec(t, admin, "ALTER SYSTEM SET "+setting)
	}
	exec(t, admin, "SELECT pg_reload_conf()")
	root := filepath.Join(t.TempDir(), "root.pem")
	if err := os.WriteFile(root, []byte(cert), 0o600); err != nil {
		t.Fatal(err)
	}
	base := "postgres://" + testserver.PostgresUser + ":s3cret@" + s.Addr() + "/postgres?ttl=2s&sslmode="
	var l lock.Locker
	until(t, func() bool { // the server reads its files when it comes to it
		var err error
		l, err = open(t, base+"verify-full&sslrootcert="+root)
		return err == nil
	})
	h := tryAcquire(t, l, "k")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for range 20 {
				release(t, acquire(t, l, fmt.Sprint("k-", i%10), 20*time.Second))
			}
		})
	}
	all.Wait()
	time.Sleep(3 * time.Second) // more than a TTL
	release(t, h)
	_, err := open(t, base+"verify-full")
	if err == nil || !strings.Contains(err.Error(), "check the certificates") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v, want an error that names the certificates", err)
	}
}

// certificate returns one of its own making for 127.0.0.1, and its key.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	encode := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", secret)
}

// Roles are often made for one program, for a day, and put into another that owns all: their
// sessions must be able to see and to terminate each other.
func TestRoleThatIsPutIntoAnother(t *testing.T) {
	s := testserver.Postgres(t)
	admin := dial(t, s)
	exec(t, admin, "CREATE ROLE owner NOLOGIN; GRANT CREATE ON DATABASE postgres TO owner; "+
		"CREATE ROLE app LOGIN IN ROLE owner; ALTER ROLE app SET role = 'owner'")
	p, err := conformance.NewProxy(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	u := "postgres://app@" + p.Addr() + "," + s.Addr() + "/postgres?sslmode=disable"
	d, err := pglock.NewDriver(u, pglock.Config{Config: lock.Config{TTL: 10 * time.Minute}})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close(context.Background())
	g, err := d.Acquire(t.Context(), &driver.Request{Key: "k", ID: "a", Busy: func() {}})
	if err != nil {
		t.Fatal(err)
	}
	if got := value[string](t, admin, "SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'holdfast'"); got != "owner" {
		t.Errorf("the schema is owned by %s", got)
	}
	p.Stall() // the server does not hear of the connection's end
	p.Refuse()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := g.Lease().End(ctx); err == nil {
		t.Error("the session has ended, at a server that cannot be reached")
	}
	if holderOf(t, admin, "k") == 0 {
		t.Fatal("the server has heard of it")
	}
	until(t, func() bool { err = g.Lease().End(t.Context()); return err == nil })
	if holderOf(t, admin, "k") != 0 {
		t.Error("the lock is left")
	}
}

// Close leaves nothing behind of a session that was being opened at a server which has
// fallen silent.
func TestCloseWhileOpening(t *testing.T) {
	s := testserver.Postgres(t)
	p, err := conformance.NewProxy(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	pool, err := pgxpool.New(t.Context(), "postgres://"+testserver.PostgresUser+"@"+p.Addr()+"/postgres?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	l, err := pglock.New(pool, pglock.Config{})
	if err != nil {
		t.Fatal(err)
	}
	p.Delay(0, 200*time.Millisecond)
	time.AfterFunc(500*time.Millisecond, p.Stall) // connected, and asked
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = l.TryAcquire(ctx, "k")
	matches(t, "a silent server", err, context.DeadlineExceeded)
	opening := func() bool {
		var stacks strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
		return strings.Contains(stacks.String(), "pgconn.(*PgConn)")
	}
	if !opening() {
		t.Fatal("nothing is being opened")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	began := time.Now()
	until(t, func() bool { return !opening() })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("what was being opened has ended %v after Close", took)
	}
}
