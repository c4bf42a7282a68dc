package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func init() {
	lock.Register("postgres", open)
	lock.Register("postgresql", open)
}

const (
	defaultSchema    = "holdfast"
	defaultWaitConns = 8
	maxWaitConns     = 1000
	maxTTL           = math.MaxInt32 * time.Millisecond // that a session may be idle
)

// Config is what [New] takes. The zero value is ready for use.
type Config struct {
	// The TTL is at most 2147483647 ms, 24.8 days: PostgreSQL counts no further.
	lock.Config

	// Namespace keeps the locks of several applications in one database apart; ""
	// means "holdfast".
	Namespace string

	// Schema is the database schema in which tokens have what they need; "" means
	// "holdfast". All Lockers of a namespace must have the same one.
	Schema string

	// NoTokens leaves tokens out, and needs nothing in the database.
	NoTokens bool

	// WaitConns is how many connections the waits for locks may use, besides the one that
	// the Locker has for all else; 0 means 8.
	WaitConns int
}

// resolve checks c and fills in its zero values.
func (c Config) resolve() (Config, error) {
	var err error
	if c.Config, err = c.Config.WithDefaults(); err != nil {
		return Config{}, err
	}
	if c.TTL > maxTTL {
		return Config{}, fmt.Errorf("%w: ttl %v is more than PostgreSQL counts, %v", lock.ErrInvalid, c.TTL, maxTTL)
	}
	c.WaitConns = cmp.Or(c.WaitConns, defaultWaitConns)
	if c.WaitConns < 0 || c.WaitConns > maxWaitConns {
		return Config{}, fmt.Errorf("%w: wait_conns %d is not between 1 and %d", lock.ErrInvalid, c.WaitConns, maxWaitConns)
	}
	c.Namespace = cmp.Or(c.Namespace, defaultNamespace)
	c.Schema = cmp.Or(c.Schema, defaultSchema)
	if strings.ContainsRune(c.Schema, 0) || len(c.Schema) > 63 {
		return Config{}, fmt.Errorf("%w: the schema %q holds a zero byte, or is longer than 63 bytes", lock.ErrInvalid, c.Schema)
	}
	return c, checkNamespace(c.Namespace)
}

// New returns a Locker for the server of a pool that the application has. It asks the
// server nothing, and never closes the pool. Of the pool it takes the configuration of
// connections, BeforeConnect included, and no connection: locks have their own, which
// neither the pool's size nor its limits of age and idleness touch.
func New(pool *pgxpool.Pool, cfg Config) (lock.Locker, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	if pool == nil {
		return nil, fmt.Errorf("holdfast: %w: the pool is nil", lock.ErrInvalid)
	}
	connect := func(ctx context.Context) (*pgconn.PgConn, error) {
		c := pool.Config()
		if c.BeforeConnect != nil {
			if err := c.BeforeConnect(ctx, c.ConnConfig); err != nil {
				return nil, err
			}
		}
		return dial(ctx, &c.ConnConfig.Config, cfg.Owner)
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) { return newBackend(connect, cfg, h), nil }, cfg.Config)
}

// dial connects. The server shows who connects to whoever looks at its sessions.
func dial(ctx context.Context, c *pgconn.Config, owner string) (*pgconn.PgConn, error) {
	c = c.Copy()
	if c.RuntimeParams == nil {
		c.RuntimeParams = make(map[string]string)
	}
	c.RuntimeParams["application_name"] = applicationName(owner)
	// When a statement's context ends, pgx connects once more to have the statement cancelled,
	// and may wait 15 seconds for that. There is nothing to cancel: see closeConn.
	var connected atomic.Bool
	reach := c.DialFunc
	c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if connected.Load() {
			return nil, errNoCancel
		}
		return reach(ctx, network, addr)
	}
	conn, err := pgconn.ConnectConfig(ctx, c)
	connected.Store(err == nil)
	return conn, err
}

var errNoCancel = errors.New("statements are not cancelled")

func open(ctx context.Context, u *url.URL, common lock.Config) (lock.Locker, error) {
	q := driver.NewQuery(u)
	cfg := Config{
		Config: common, Namespace: q.String("namespace", ""), Schema: q.String("schema", ""),
		WaitConns: q.Int("wait_conns", 0),
	}
	switch token := q.String("token", "on"); token {
	case "on":
	case "off":
		cfg.NoTokens = true
	default:
		return nil, fmt.Errorf("%w: token=%q is neither on nor off", lock.ErrInvalid, token)
	}
	to, err := parse(u, q)
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.resolve(); err != nil {
		return nil, err
	}
	connect := func(ctx context.Context) (*pgconn.PgConn, error) { return dial(ctx, to, cfg.Owner) }
	return driver.New(func(h driver.Host) (driver.Driver, error) {
		b := newBackend(connect, cfg, h)
		if err := b.ping(ctx); err != nil {
			_ = b.Close(ctx)
			return nil, err
		}
		return b, nil
	}, cfg.Config)
}

// ping opens the session, so that a wrong password, a pooler or a missing permission is told
// when the program starts, and not with its first lock.
func (b *backend) ping(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	_, err := b.session(bounded)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w: %w", lock.ErrUnavailable, context.Cause(ctx), err)
	case driver.IsPermanent(err):
		return err
	default:
		return fmt.Errorf("%w: %w", lock.ErrUnavailable, err)
	}
}
