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

// backend is the driver.
type backend struct {
	client redis.UniversalClient
	owned  bool // Close closes the client
	prefix string
	limit  time.Duration // of one request
	maxTTL time.Duration // of all Lockers: none grants so soon after a restart of the server

	prompt bool  // the client never outlasts a deadline
	knows  int64 // 1: the server knows of all who listen to what it publishes

	// follows: the client follows redirections. Those that are left go in circles, for as
	// long as a slot is being moved.
	follows bool

	funnel  *funnel
	wakeups *wakeups

	// apart: the keys of two locks must not meet in one script (a cluster).
	apart atomic.Bool
}

// run makes a call, once. Its error is marked: see fault.
func (b *backend) run(ctx context.Context, c *call) (any, error) {
	if err := ctx.Err(); err != nil {
		return nil, driver.Refused(err)
	}
	// A cancellation alone does not reach go-redis while it reads: every request gets
	// a deadline.
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	if b.follows {
		// A round trip to several nodes lasts as long as that to the slowest.
		c.run(ctx, b.client)
		return c.reply, b.fault(c.err)
	}
	reply, err := b.funnel.run(ctx, c)
	return reply, b.fault(err)
}

// Inspect implements driver.Driver.
func (b *backend) Inspect(ctx context.Context, key string) (lock.Info, error) {
	name := lockName(b.prefix, key)
	reply, err := b.run(ctx, newCall(inspectScript, []any{name, askedName(name)}))
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
	var err error
	b.wakeups.stop() // first: that the client is closed is no fault of the server's
	if b.owned {
		err = b.client.Close() // it ends what the listening waits for
	}
	b.wakeups.close(ctx)
	return err
}
