package redislock

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// backend is the driver. Each of its methods is one request to the server.
type backend struct {
	client redis.UniversalClient
	owned  bool // Close closes the client
	prefix string
	limit  time.Duration // of one request

	// follows: the client follows redirections. Those that are left go in circles, for as
	// long as a slot is being moved.
	follows bool

	// apart: the keys of two locks must not meet in one script (a cluster).
	apart atomic.Bool
}

// run runs s once. Its error is marked: see fault.
func (b *backend) run(ctx context.Context, s script, keys []string, args ...any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, driver.Refused(err)
	}
	// A cancellation alone does not reach go-redis while it reads: every request gets
	// a deadline.
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	c := call{keys: keys, args: args}
	s.run(ctx, b.client, &c)
	return c.reply, b.fault(c.err)
}

// Acquire implements driver.Driver.
func (b *backend) Acquire(ctx context.Context, r *driver.Request) (driver.Grant, error) {
	if r.Mode != lock.ModeExclusive {
		return nil, driver.Permanent(fmt.Errorf("shared locks in Redis: %w", errors.ErrUnsupported))
	}
	name := lockName(b.prefix, r.Key)
	counter, tombstone := counterName(name), tombstoneName(name, r.ID)
	ttl := r.TTL.Truncate(time.Millisecond) // what the server is told, and no more
	proved := driver.Now()
	reply, err := b.run(ctx, acquireScript, []string{name, counter, tombstone}, r.ID, ttl.Milliseconds(), r.Owner)
	if err != nil {
		return nil, err
	}
	switch reply {
	case int64(0):
		if r.Busy != nil {
			r.Busy()
		}
		return nil, lock.ErrHeld
	case int64(-1):
		return nil, driver.Refused(errors.New("the request was abandoned"))
	case int64(-2):
		return nil, foreign(name)
	case int64(-3):
		return nil, foreign(counter)
	}
	text, _ := reply.(string)
	token, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return nil, unexpected(reply)
	}
	return &grant{backend: b, key: r.Key, id: r.ID, token: lock.Token(token), ttl: ttl, proved: proved}, nil
}

// Abandon implements driver.Driver. The tombstone stays as long as the engine goes on
// abandoning. A request that is under way for longer still takes the lock for one TTL,
// in which nobody renews it.
func (b *backend) Abandon(ctx context.Context, r *driver.Request) error {
	name := lockName(b.prefix, r.Key)
	_, err := b.run(ctx, releaseScript, []string{name, tombstoneName(name, r.ID)}, r.ID, 2*r.TTL.Milliseconds())
	return err
}

// maxBatch is how many locks one script renews, while the server does nothing else:
// about a millisecond.
const maxBatch = 256

// Renew implements driver.Driver.
func (b *backend) Renew(ctx context.Context, leases []driver.Lease) []error {
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	if !b.apart.Load() {
		errs := b.renew(ctx, leases, maxBatch)
		if !anyCrossesSlots(errs) {
			return errs
		}
		b.apart.Store(true) // there is a cluster behind the one address
	}
	return b.renew(ctx, leases, 1)
}

func (b *backend) renew(ctx context.Context, leases []driver.Lease, batch int) []error {
	calls := make([]*call, 0, (len(leases)+batch-1)/batch)
	for i, l := range leases {
		if i%batch == 0 {
			calls = append(calls, new(call))
		}
		g, c := l.(*grant), calls[len(calls)-1]
		c.keys = append(c.keys, lockName(b.prefix, g.key))
		c.args = append(c.args, g.id, g.ttl.Milliseconds())
	}
	renewScript.runAll(ctx, b.client, calls)
	errs := make([]error, 0, len(leases))
	for _, c := range calls {
		errs = append(errs, c.renewed(b.fault(c.err))...)
	}
	return errs
}

// renewed returns what a call of the renewing script says of each lock.
// err is the call's own, judged.
func (c *call) renewed(err error) []error {
	errs := make([]error, len(c.keys))
	answers, _ := c.reply.(string)
	if err == nil && len(answers) != len(errs) {
		err = unexpected(c.reply)
	}
	for i := range errs {
		switch {
		case err != nil:
			errs[i] = err
		case answers[i] != '1':
			errs[i] = lock.ErrLost
		}
	}
	return errs
}

// Inspect implements driver.Driver.
func (b *backend) Inspect(ctx context.Context, key string) (lock.Info, error) {
	name := lockName(b.prefix, key)
	reply, err := b.run(ctx, inspectScript, []string{name})
	switch {
	case err != nil:
		return lock.Info{}, err
	case reply == int64(0):
		return lock.Info{}, nil
	}
	value, _ := reply.(string)
	holder, ok := parseHolder(value)
	if !ok {
		return lock.Info{}, foreign(name)
	}
	return lock.Info{Holders: []lock.Holder{holder}}, nil
}

const idLen = 32 // 128 bits in hexadecimal

// parseHolder reads what acquire.lua has written: ID, token, microseconds, and the
// owner last, who may have spaces.
func parseHolder(value string) (h lock.Holder, ok bool) {
	fields := strings.SplitN(value, " ", 4)
	if len(fields) != 4 || len(fields[0]) != idLen {
		return h, false
	}
	token, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return h, false
	}
	since, err := strconv.ParseInt(fields[2], 10, 64)
	if err != nil {
		return h, false
	}
	return lock.Holder{Owner: fields[3], Token: lock.Token(token), Since: time.UnixMicro(since)}, true
}

// Features implements driver.Driver.
func (b *backend) Features() lock.Features { return lock.Fencing | lock.Leased }

// Close implements driver.Driver.
func (b *backend) Close(context.Context) error {
	if !b.owned {
		return nil
	}
	return b.client.Close()
}

// grant is one lock, and its lease: in Redis each has its own.
type grant struct {
	backend *backend
	key, id string
	token   lock.Token
	ttl     time.Duration
	proved  driver.Stamp
}

// Token implements driver.Grant.
func (g *grant) Token() (lock.Token, bool) { return g.token, true }

// Lease implements driver.Grant.
func (g *grant) Lease() driver.Lease { return g }

// Proved implements driver.Grant.
func (g *grant) Proved() driver.Stamp { return g.proved }

// Release implements driver.Grant.
func (g *grant) Release(ctx context.Context) error {
	b := g.backend
	switch reply, err := b.run(ctx, releaseScript, []string{lockName(b.prefix, g.key)}, g.id); {
	case err != nil:
		return err
	case reply != int64(1):
		return lock.ErrLost
	}
	return nil
}

// Term implements driver.Lease. It is what was sent: Redis counts from when it got the
// request, and a lock goes in the millisecond after its last, never before.
func (g *grant) Term() time.Duration { return g.ttl }

// End implements driver.Lease.
func (g *grant) End(ctx context.Context) error {
	if err := g.Release(ctx); !errors.Is(err, lock.ErrLost) {
		return err
	}
	return nil
}
