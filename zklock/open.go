package zklock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func init() { lock.Register("zk", open) }

// Config is what [New] takes. The zero value is ready for use.
type Config struct {
	// The TTL is the timeout of sessions: whole milliseconds, within the limits of the
	// servers, which are 2 and 20 of their ticks if they are not told otherwise, and must be
	// the same for all of them. With less than 5 ticks little is left of it when what is
	// subtracted for the servers is.
	lock.Config

	// Root is the path of the node below which everything is kept; "" means "/holdfast".
	// It is made if it does not exist. Lockers with different roots do not see each other.
	Root string

	// Tick is the tickTime that the servers are configured with, or more. The greater it
	// is, the earlier a lock counts as lost when the servers cannot be reached, and if the
	// servers have a greater one, locks may be lost late. 0 means 3 s, which is what a
	// server has that is not told otherwise, or half of the TTL if that is less.
	Tick time.Duration

	// Auth are credentials for the servers.
	Auth []Auth

	// ACL is for all nodes. None means: all permissions for whoever has the credentials in
	// Auth, or, without credentials, for everybody.
	ACL []zk.ACL

	// Dial, if not nil, connects to a server: with TLS, say. It must end with its context.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Auth is how a client tells ZooKeeper who it is.
type Auth struct {
	Scheme      string // as in "digest"
	Credentials string // as in "user:password"
}

// String returns the scheme alone.
func (a Auth) String() string { return "zklock.Auth(" + a.Scheme + ")" }

// Format writes [Auth.String] for every verb of package fmt.
func (a Auth) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, a.String()) }

// LogValue returns [Auth.String] for package log/slog.
func (a Auth) LogValue() slog.Value { return slog.StringValue(a.String()) }

// New returns a Locker on these servers, each a "host:port" or a host; all must be of one
// ensemble. It asks them nothing.
//
// It does not take a zk.Conn that the application has: locks live and die with a session,
// which a Locker must be able to end, and to open again.
func New(servers []string, cfg Config) (lock.Locker, error) {
	servers, err := checkServers(servers)
	if err == nil {
		cfg, err = cfg.resolve()
	}
	if err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) { return newBackend(servers, cfg, h), nil }, cfg.Config)
}

func checkServers(servers []string) ([]string, error) {
	checked := make([]string, len(servers))
	for i, s := range servers {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			host, port = strings.Trim(s, "[]"), fmt.Sprint(zk.DefaultPort)
		}
		if host == "" || port == "" {
			return nil, fmt.Errorf("%w: the ZooKeeper server %q is no host:port", lock.ErrInvalid, s)
		}
		checked[i] = net.JoinHostPort(host, port)
	}
	if len(checked) == 0 {
		return nil, fmt.Errorf("%w: no ZooKeeper server is given; give one or more, as in localhost:2181", lock.ErrInvalid)
	}
	return checked, nil
}

// resolve checks c and fills in its zero values.
func (c Config) resolve() (Config, error) {
	var err error
	if c.Config, err = c.Config.WithDefaults(); err != nil {
		return Config{}, err
	}
	switch rest := c.TTL % time.Millisecond; {
	case rest != 0:
		return Config{}, fmt.Errorf("%w: ttl %v is not whole milliseconds, as ZooKeeper counts them; take %v",
			lock.ErrInvalid, c.TTL, c.TTL-rest)
	case c.TTL > math.MaxInt32*time.Millisecond:
		return Config{}, fmt.Errorf("%w: ttl %v is more than ZooKeeper can count, %v",
			lock.ErrInvalid, c.TTL, math.MaxInt32*time.Millisecond)
	case c.Tick < 0 || c.Tick > c.TTL/2:
		return Config{}, fmt.Errorf("%w: tick %v, the tickTime of the servers, is not between 0 and half of the ttl, %v, "+
			"which is at least two ticks", lock.ErrInvalid, c.Tick, c.TTL)
	}
	c.Tick = cmp.Or(c.Tick, min(3*time.Second, c.TTL/2))
	c.Root = cmp.Or(c.Root, defaultRoot)
	if len(c.ACL) == 0 {
		c.ACL = zk.WorldACL(zk.PermAll)
		if len(c.Auth) > 0 {
			c.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	c.Auth, c.ACL = slices.Clone(c.Auth), slices.Clone(c.ACL)
	return c, checkRoot(c.Root)
}

func open(ctx context.Context, u *url.URL, common lock.Config) (lock.Locker, error) {
	servers, cfg, err := parse(u)
	if err != nil {
		return nil, err
	}
	q := driver.NewQuery(u)
	cfg.Config, cfg.Tick = common, q.Duration("tick", 0)
	if err := q.Err(); err != nil {
		return nil, err
	}
	if cfg, err = cfg.resolve(); err != nil {
		return nil, err
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) {
		b := newBackend(servers, cfg, h)
		if err := b.knock(ctx); err != nil {
			_ = b.Close(ctx)
			return nil, err
		}
		return b, nil
	}, cfg.Config)
}

// parse reads a URL up to its query. Of a password whose special characters were not
// percent-encoded, a piece can be anywhere in it: so no error quotes any part.
func parse(u *url.URL) (servers []string, cfg Config, err error) {
	bad := func(what string) ([]string, Config, error) {
		return nil, Config{}, fmt.Errorf("%w: %s; write zk://user:password@host1:2181,host2:2181/root, and percent-encode special characters",
			lock.ErrInvalid, what)
	}
	for key := range u.Query() {
		if strings.ContainsAny(key, "@:/") {
			return bad("what looks like a host comes after a question mark")
		}
	}
	if u.Opaque != "" || u.Fragment != "" {
		return bad("the URL has no // after its scheme, or has a #")
	}
	if servers, err = checkServers(strings.Split(cmp.Or(u.Host, "localhost"), ",")); err != nil {
		return bad("the URL has a host without a name, or a port without a number")
	}
	user := u.User.Username()
	password, hasPassword := u.User.Password()
	switch {
	case user != "" && hasPassword:
		cfg.Auth = []Auth{{Scheme: "digest", Credentials: user + ":" + password}}
	case u.User != nil:
		return bad("the URL has a user or a password, but not both")
	}
	if strings.Contains(user, ":") { // which ends the name, for the server
		return bad("the URL has a user with a colon")
	}
	cfg.Root = strings.TrimSuffix(u.Path, "/")
	return servers, cfg, nil
}

// knock opens the first session, so that what the servers refuse, or servers that cannot
// be reached, are told when the program starts, and not with its first lock.
func (b *backend) knock(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := b.sessionFor(bounded, 0)
	_, mended := permanent(err)
	switch {
	case err == nil:
		return nil
	case mended, errors.Is(err, lock.ErrInvalid):
		return err
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return fmt.Errorf("%w: zookeeper: %w", lock.ErrUnavailable, err)
}
