package etcdlock

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func init() {
	lock.Register("etcd", open)
	lock.Register("etcds", open)
}

// Config is what [New] takes. The zero value is ready for use.
type Config struct {
	// The TTL is rounded up to whole seconds, as etcd counts them, and by the server to its
	// least time to live: one and a half times its election timeout, so two seconds unless it is
	// told otherwise. If that makes it longer, an event of the kind [lock.Warning] says how
	// long it is.
	lock.Config

	// Prefix begins all names at the server; "" means "/holdfast/". It ends with a slash: if it
	// does not, one is added. Lockers with different prefixes do not see each other.
	Prefix string
}

// New returns a Locker on a client that the application has. It asks the server nothing, and
// never closes the client. If that is closed, the Locker is of no use any more.
//
// The client may be wrapped by package clientv3/namespace. It should have a DialKeepAliveTime,
// so that a connection that has died unnoticed is replaced: see [lock.Open], which sets it. And
// if something between it and the servers cancels requests on its own account, as some proxies
// do, it sends writes twice without telling, and a second copy that comes late may leave a lock
// that nobody holds, until the Locker is closed; a client of [lock.Open]'s does not.
func New(client *clientv3.Client, cfg Config) (lock.Locker, error) {
	asked := cfg.TTL
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	if client == nil {
		return nil, fmt.Errorf("holdfast: %w: the etcd client is nil", lock.ErrInvalid)
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) {
		return newBackend(client, cfg, cmp.Or(asked, cfg.TTL), h), nil
	}, cfg.Config)
}

// resolve checks c and fills in its zero values.
func (c Config) resolve() (Config, error) {
	var err error
	if c.Config, err = c.Config.WithDefaults(); err != nil {
		return Config{}, err
	}
	c.TTL = (c.TTL + time.Second - 1).Truncate(time.Second)
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	if !strings.HasSuffix(c.Prefix, "/") {
		c.Prefix += "/"
	}
	return c, driver.CheckPrefix(c.Prefix)
}

// requestLimit is how long one request may take, but for renewals, which the engine bounds: if
// the endpoint that it went to is mute, there must be time to try another.
func requestLimit(ttl time.Duration) time.Duration {
	return min(max(ttl/6, time.Second), 5*time.Second)
}

func open(ctx context.Context, u *url.URL, common lock.Config) (lock.Locker, error) {
	asked := common.TTL
	cfg, err := Config{Config: common, Prefix: prefixOf(u)}.resolve()
	if err != nil {
		return nil, err
	}
	opts, err := parse(u, requestLimit(cfg.TTL))
	if err != nil {
		return nil, err
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) {
		client, err := dial(ctx, opts, cfg.Prefix)
		if err != nil {
			return nil, err
		}
		b := newBackend(client, cfg, cmp.Or(asked, cfg.TTL), h)
		b.owned = true
		return b, nil
	}, cfg.Config)
}

// prefixOf returns the path of a URL, but for one that says nothing.
func prefixOf(u *url.URL) string {
	if u.Path == "/" {
		return ""
	}
	return u.Path
}

// parse reads a URL without its path. Of a password whose special characters were not
// percent-encoded, a piece can be anywhere in it: so no error quotes any part.
func parse(u *url.URL, limit time.Duration) (clientv3.Config, error) {
	bad := func(what string) error {
		return fmt.Errorf("%w: %s; write %s://user:password@host1:2379,host2:2379/prefix, and percent-encode special characters",
			lock.ErrInvalid, what, u.Scheme)
	}
	user := u.User.Username()
	password, _ := u.User.Password()
	switch {
	case u.Opaque != "", u.Fragment != "":
		return clientv3.Config{}, bad("the URL has no // after its scheme, or has a #")
	case (user == "") != (password == ""):
		return clientv3.Config{}, bad("the URL has a user without a password, or a password without a user")
	}
	opts := clientv3.Config{
		Username: user, Password: password,
		Logger: zap.NewNop(), // what a user has to know is in errors and events
		// A connection that died unnoticed is replaced after these, or the second alone if
		// something was sent on it. Servers turn away clients that ask more than every 5 s.
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: limit,
		DialTimeout: openLimit,
		// Once for the request, and once for it with a new login: the engine tries again.
		MaxUnaryRetries: 2,
		DialOptions: []grpc.DialOption{
			grpc.WithChainUnaryInterceptor(atMostOnce),
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: limit,
			}),
		},
	}
	for host := range strings.SplitSeq(cmp.Or(u.Host, "localhost"), ",") {
		address, err := withPort(host)
		if err != nil {
			return clientv3.Config{}, bad("the URL has an empty host, or one that is not understood")
		}
		opts.Endpoints = append(opts.Endpoints, address)
	}
	q := driver.NewQuery(u)
	files := tlsFiles{ca: q.String("ca", ""), cert: q.String("cert", ""), key: q.String("key", "")}
	if err := q.Err(); err != nil {
		return clientv3.Config{}, err
	}
	var err error
	if u.Scheme == "etcds" {
		opts.TLS, err = files.config()
	} else if files != (tlsFiles{}) {
		err = fmt.Errorf("%w: ca, cert and key are of TLS; write etcds:// for etcd://, or leave them out", lock.ErrInvalid)
	}
	return opts, err
}

// withPort returns a host with a port.
func withPort(host string) (string, error) {
	if host == "" {
		return "", errors.New("an empty host")
	}
	if name, port, err := net.SplitHostPort(host); err == nil && name != "" && port != "" {
		return host, nil
	}
	bare := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if _, err := netip.ParseAddr(bare); err != nil && strings.Contains(bare, ":") {
		return "", errors.New("a colon and no port")
	}
	return net.JoinHostPort(bare, "2379"), nil
}

// tlsFiles are the PEM files that a URL names.
type tlsFiles struct{ ca, cert, key string }

func (f tlsFiles) config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, fmt.Errorf("%w: ca: %w", lock.ErrInvalid, err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: ca: there is no certificate in %s", lock.ErrInvalid, f.ca)
		}
	}
	if f.cert == "" && f.key == "" {
		return c, nil
	}
	if f.cert == "" || f.key == "" {
		return nil, fmt.Errorf("%w: give both cert and key, or neither", lock.ErrInvalid)
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%w: cert and key: %w", lock.ErrInvalid, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}

// atMostOnce has a request fail when there is no connection, with the reason, and not wait for
// one until its time is over. Streams wait: the client begins them again without a pause.
//
// And it has the client send none twice. That takes the word of somebody on the way who has
// cancelled a request, or has run out of time for it, for the end of an attempt of its own, and
// sends it again, a write as well, of which two copies are under way then and only one is known.
//
// A login that failed pauses first: the client makes the next of some requests without a pause.
func atMostOnce(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
	if s := status.Convert(err); ctx.Err() == nil && (s.Code() == codes.Canceled || s.Code() == codes.DeadlineExceeded) {
		err = status.Error(codes.Unavailable, s.Message())
	}
	if method == pb.Auth_Authenticate_FullMethodName && status.Code(err) == codes.Unavailable {
		_ = sleep(ctx, 50*time.Millisecond)
	}
	return err
}

// openLimit is how long opening may take.
const openLimit = 5 * time.Second

// dial makes a client, and asks the server once, so that a wrong password, certificate or
// address is told when the program starts, and not with its first lock.
func dial(ctx context.Context, opts clientv3.Config, prefix string) (*clientv3.Client, error) {
	life, end := context.WithCancel(context.Background())
	opts.Context = life
	stop := context.AfterFunc(ctx, end) // the client logs in when it is made, and looks at no other context
	client, err := clientv3.New(opts)
	if err == nil {
		bounded, cancel := context.WithTimeout(ctx, openLimit)
		_, err = client.Get(bounded, barrierName(prefix, ""), clientv3.WithKeysOnly())
		cancel()
	}
	if stop() && err == nil {
		return client, nil
	}
	if err == nil {
		err = ctx.Err()
	}
	if client != nil {
		_ = client.Close()
	}
	end()
	where := "etcd at " + strings.Join(opts.Endpoints, ", ")
	if text, permanent := remedy(err); permanent {
		return nil, fmt.Errorf("%s: %w; %s", where, err, text)
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("no answer within %v", openLimit)
	case opts.TLS == nil && !refused(err):
		err = fmt.Errorf("%w; does the server want TLS (etcds://)?", err)
	case opts.TLS != nil && strings.Contains(err.Error(), handshakeFailed):
		err = fmt.Errorf("%w; does the server speak TLS?", err)
	case opts.TLS != nil && len(opts.TLS.Certificates) == 0 && !refused(err): // it may be late to say so
		err = fmt.Errorf("%w; does the server ask its clients for a certificate?", err)
	}
	return nil, fmt.Errorf("%w: %s: %w", lock.ErrUnavailable, where, err)
}
