package redislock

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func init() {
	lock.Register("redis", open)
	lock.Register("rediss", open)
}

// Config is what [New] takes. The zero value is ready for use.
type Config struct {
	// The TTL must be whole milliseconds, as Redis counts them.
	lock.Config

	// Prefix begins all names at the server; "" means "holdfast". Lockers with
	// different prefixes do not see each other.
	Prefix string

	// MaxTTL, if not 0, is the longest TTL of all Lockers on the server. Then none is
	// granted a lock before the server has run for so long: after a restart it may
	// have forgotten locks whose holders rely on them. The server tells how long it has
	// run by its clock: if that is stepped forward meanwhile, the time seems over.
	MaxTTL time.Duration
}

// New returns a Locker on a client that the application has. It asks the server
// nothing, and never closes the client.
//
// The client is a *redis.Client, from redis.NewFailoverClient too, or a
// *redis.ClusterClient, or what wraps one of them. Locks do without its retries. A
// ClusterClient should have ContextTimeoutEnabled set: otherwise a node that hangs
// holds each request for the whole ReadTimeout. A Client should have it, too: it is
// faster then by the time that it takes to hand each request to another goroutine; and
// of one without it a copy is used, with a ReadTimeout that suits the TTL, which calls
// no hooks.
func New(client redis.UniversalClient, cfg Config) (lock.Locker, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	if err := checkClient(client); err != nil {
		return nil, fmt.Errorf("holdfast: %w", err)
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) { return newBackend(client, cfg, h), nil }, cfg.Config)
}

// checkClient refuses clients that cannot be used, or not safely.
func checkClient(client redis.UniversalClient) error {
	switch client.(type) {
	case nil:
		return fmt.Errorf("%w: the Redis client is nil", lock.ErrInvalid)
	case *redis.Ring:
		return fmt.Errorf("%w: a redis.Ring moves keys between servers, which grants locks twice; "+
			"give a redis.Client or a redis.ClusterClient", lock.ErrInvalid)
	case *redis.AutoPipeliner:
		return fmt.Errorf("%w: a redis.AutoPipeliner sends commands late and again; "+
			"give the client that it was made from", lock.ErrInvalid)
	}
	return nil
}

// newBackend returns a backend on a client that is not its own.
func newBackend(client redis.UniversalClient, cfg Config, h driver.Host) *backend {
	b := &backend{client: client, prefix: cfg.Prefix, limit: requestLimit(cfg.TTL), maxTTL: cfg.MaxTTL}
	switch c := client.(type) {
	case *redis.Client:
		// While it reads, a client looks at its own timeouts only, unless told otherwise.
		o := c.Options()
		b.prompt = o.ContextTimeoutEnabled
		if o.Addr != "FailoverClient" { // whose subscriptions may stay at the old primary
			b.knows = 1
		}
		if !o.ContextTimeoutEnabled && (o.ReadTimeout <= 0 || o.ReadTimeout > b.limit) {
			b.client = c.WithTimeout(b.limit)
		}
	default:
		b.follows = true
		b.apart.Store(true)
	}
	b.funnel = &funnel{client: b.client, limit: b.limit}
	b.wakeups = newWakeups(b.client, cfg.Prefix, b.limit, h)
	return b
}

// resolve checks c and fills in its zero values.
func (c Config) resolve() (Config, error) {
	var err error
	if c.Config, err = c.Config.WithDefaults(); err != nil {
		return Config{}, err
	}
	if rest := c.TTL % time.Millisecond; rest != 0 {
		return Config{}, fmt.Errorf("%w: ttl %v is not whole milliseconds, as Redis counts them; take %v",
			lock.ErrInvalid, c.TTL, c.TTL-rest)
	}
	if c.MaxTTL != 0 && (c.MaxTTL < c.TTL || c.MaxTTL > lock.MaxTTL) {
		return Config{}, fmt.Errorf("%w: max_ttl %v, the longest TTL of all Lockers on the server, is not between the ttl, %v, and %v",
			lock.ErrInvalid, c.MaxTTL, c.TTL, lock.MaxTTL)
	}
	c.Prefix = cmp.Or(c.Prefix, defaultPrefix)
	return c, driver.CheckPrefix(c.Prefix)
}

// requestLimit is how long one request may take: a server that is mute must not eat up
// the lease, in which there is time to try again.
func requestLimit(ttl time.Duration) time.Duration { return min(ttl/6, 5*time.Second) }

func open(ctx context.Context, u *url.URL, common lock.Config) (lock.Locker, error) {
	opts, err := parse(u)
	if err != nil {
		return nil, err
	}
	q := driver.NewQuery(u)
	cfg := Config{Config: common, Prefix: q.String("prefix", ""), MaxTTL: q.Duration("max_ttl", 0)}
	if err := q.Err(); err != nil {
		return nil, err
	}
	if cfg, err = cfg.resolve(); err != nil {
		return nil, err
	}
	limit := requestLimit(cfg.TTL)
	opts.ReadTimeout, opts.WriteTimeout, opts.PoolTimeout = limit, limit, limit
	opts.DialTimeout = 2 * limit // with TLS, several round trips
	return driver.New(func(h driver.Host) (driver.Driver, error) {
		client := redis.NewClient(opts)
		if err := ping(ctx, client, h); err != nil {
			_ = client.Close()
			return nil, err
		}
		b := newBackend(client, cfg, h)
		b.owned = true
		return b, nil
	}, cfg.Config)
}

// parse reads a URL up to its query. Of a password whose special characters were not
// percent-encoded, a piece can be anywhere in it: so no error quotes any part.
func parse(u *url.URL) (*redis.Options, error) {
	bad := func(what string) (*redis.Options, error) {
		return nil, fmt.Errorf("%w: %s; write %s://user:password@host:6379/0, and percent-encode special characters",
			lock.ErrInvalid, what, u.Scheme)
	}
	for key := range u.Query() {
		if strings.ContainsAny(key, "@:/") {
			return bad("what looks like a host comes after a question mark")
		}
	}
	database, err := strconv.ParseUint(cmp.Or(strings.TrimPrefix(u.Path, "/"), "0"), 10, 31)
	switch {
	case u.Opaque != "", u.Fragment != "":
		return bad("the URL has no // after its scheme, or has a #")
	case err != nil:
		return bad("the path is not the number of a database")
	case strings.Contains(u.Host, ","):
		return bad("the URL has several hosts")
	}
	user := u.User.Username()
	password, _ := u.User.Password()
	if user != "" && password == "" { // the client would log in as nobody, and be the default user
		return bad("the URL has a user but no password (a password alone is :password@)")
	}
	host := cmp.Or(u.Hostname(), "localhost")
	opts := &redis.Options{
		Addr:     net.JoinHostPort(host, cmp.Or(u.Port(), "6379")),
		Username: user,
		Password: password,
		DB:       int(database),

		// What may be tried again, and until when, the engine knows.
		MaxRetries:    -1,
		DialerRetries: 1,
		// Otherwise a server that hangs holds each request for the whole ReadTimeout.
		ContextTimeoutEnabled: true,
		// Nothing of version 3 is needed, for which the client does more on each
		// connection, and each request.
		Protocol:        2,
		DisableIdentity: true,
	}
	if u.Scheme == "rediss" {
		opts.TLSConfig = &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12}
	}
	return opts, nil
}

// ping asks the server once, so that a wrong password, certificate or address is told
// when the program starts, and not with its first lock.
func ping(ctx context.Context, client *redis.Client, h driver.Host) error {
	bounded, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err := client.Process(bounded, once{redis.NewCmd(bounded, "ping")})
	for slow(err) && bounded.Err() == nil { // the client's own limits are those of a lease in use
		err = client.Process(bounded, once{redis.NewCmd(bounded, "ping")})
	}
	if err == nil {
		warnOfEviction(client.Info(bounded, "memory").Val(), h) // an ACL may forbid it
		return nil
	}
	o := client.Options()
	where := "redis at " + o.Addr
	if mended, ok := permanent(err); ok {
		return fmt.Errorf("%s: %w", where, mended)
	}
	catchUp(ctx)
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	case refused(err):
	case o.TLSConfig != nil:
		err = fmt.Errorf("%w; does the server speak TLS?", err)
	case errors.Is(err, io.EOF):
		err = fmt.Errorf("%w; does the server want TLS (rediss://)?", err)
	}
	return fmt.Errorf("%w: %s: %w", lock.ErrUnavailable, where, err)
}

// catchUp waits for ctx if its time is over: the timer of the connection, set for the
// same moment, may have been first, and callers ask ctx why a request failed.
func catchUp(ctx context.Context) {
	if end, ok := ctx.Deadline(); ok && !time.Now().Before(end) {
		<-ctx.Done()
	}
}

func slow(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

// warnOfEviction reads a reply to INFO memory.
func warnOfEviction(info string, h driver.Host) {
	values := make(map[string]string)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		values[name] = value
	}
	policy := values["maxmemory_policy"]
	if limit := values["maxmemory"]; limit != "" && limit != "0" && policy != "noeviction" {
		h.Warn(fmt.Errorf("redis may evict locks that are held, as its maxmemory-policy is %s; set it to noeviction", policy))
	}
}
