package pglock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// Open is what is registered, for a Config that a URL cannot give.
var Open = open

// Statements are the texts that a session prepares, Settings what it sets before.
var (
	Statements = statements
	Settings   = settings
)

// ApplicationName and OwnerOf are how an owner is written at the server, and read.
var (
	ApplicationName = applicationName
	OwnerOf         = ownerOf
)

// Number is the number of a key's lock in the default namespace.
func Number(key string) int64 { return number(defaultNamespace, key) }

// Flag is the number of its flag.
func Flag(key string) int64 { return nameOf(defaultNamespace, key).flag }

// NewDriver is New without the engine, for the server of a connection string.
func NewDriver(dsn string, cfg Config) (driver.Driver, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	to, err := pgconn.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	connect := func(ctx context.Context) (*pgconn.PgConn, error) { return dial(ctx, to, cfg.Owner) }
	return newBackend(connect, cfg, noHost{}), nil
}

// noHost hears nothing.
type noHost struct{ driver.Host }

func (noHost) Keep(driver.Lease, driver.Stamp) {}
func (noHost) LeaseLost(driver.Lease, error)   {}

// Rename has the shared session take the lock that it holds on key for that on another
// key with the same number.
func Rename(d driver.Driver, key, other string) {
	b := d.(*backend)
	b.mu.Lock()
	s := b.shared
	b.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[number(b.cfg.Namespace, key)].key = other
}

// HoldTurn keeps all others from writing on the shared session until leave is called.
func HoldTurn(d driver.Driver) (leave func()) {
	b := d.(*backend)
	b.mu.Lock()
	s := b.shared
	b.mu.Unlock()
	_ = s.enter(context.Background())
	return s.leave
}

// Slots has an attempt of a wait go through the steps, and returns how often its session is
// free after them.
func Slots(steps ...string) int {
	b := newBackend(nil, Config{Config: lock.Config{TTL: time.Minute}}, noHost{})
	g := &grant{b: b, s: &session{b: b, waits: true}}
	for _, step := range steps {
		switch step {
		case "over":
			g.over()
		case "keep":
			g.keep()
		case "part":
			g.part()
		}
	}
	return len(b.waiters.free)
}
