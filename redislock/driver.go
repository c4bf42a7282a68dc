package redislock

import (
	"context"
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
	maxTTL time.Duration // of all Lockers: none grants so soon after a restart of the server

	prompt bool // the client never outlasts a deadline

	// follows: the client follows redirections. Those that are left go in circles, for as
	// long as a slot is being moved.
	follows bool

	funnel  *funnel
	wakeups *wakeups

	// apart: the keys of two locks must not meet in one script (a cluster).
	apart atomic.Bool
}

// run runs s once. Its error is marked: see fault.
func (b *backend) run(ctx context.Context, s *script, keys []string, args ...any) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, driver.Refused(err)
	}
	// A cancellation alone does not reach go-redis while it reads: every request gets
	// a deadline.
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	reply, err := b.funnel.run(ctx, &call{script: s, keys: keys, args: args})
	return reply, b.fault(err)
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
			calls = append(calls, &call{script: renewScript})
		}
		g, c := l.(*grant), calls[len(calls)-1]
		c.keys = append(c.keys, lockName(b.prefix, g.key))
		c.args = append(c.args, g.id, g.ttl.Milliseconds())
	}
	runAll(ctx, b.client, calls)
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
	reply, err := b.run(ctx, inspectScript, []string{name, queueName(name)})
	switch {
	case err != nil:
		return lock.Info{}, err
	case reply == int64(-2):
		return lock.Info{}, foreign(name)
	}
	parts, _ := reply.([]any)
	if len(parts) != 2 {
		return lock.Info{}, unexpected(reply)
	}
	waiters, _ := parts[1].(int64)
	info := lock.Info{Waiters: int(waiters)}
	if parts[0] == int64(0) {
		return info, nil
	}
	value, _ := parts[0].(string)
	holder, ok := parseHolder(value)
	if !ok {
		return lock.Info{}, foreign(name)
	}
	info.Holders = []lock.Holder{holder}
	return info, nil
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

// Prompt implements driver.Prompt: if the client looks at deadlines, every request has
// one.
func (b *backend) Prompt() bool { return b.prompt }

// Features implements driver.Driver.
func (b *backend) Features() lock.Features { return lock.Fencing | lock.Leased }

// Close implements driver.Driver.
func (b *backend) Close(ctx context.Context) error {
	b.wakeups.close(ctx)
	if !b.owned {
		return nil
	}
	return b.client.Close()
}
