package redislock

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

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
	name := lockName(g.backend.prefix, g.key)
	keys := []string{name, queueName(name), turnName(name)}
	switch reply, err := g.backend.release(ctx, keys, g.id); {
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

// Abandon implements driver.Driver. The tombstone stays as long as the engine goes on
// abandoning. A request that is under way for longer still takes the lock for one TTL,
// in which nobody renews it.
func (b *backend) Abandon(ctx context.Context, r *driver.Request) error {
	name := lockName(b.prefix, r.Key)
	keys := []string{name, queueName(name), turnName(name), tombstoneName(name, r.ID)}
	_, err := b.release(ctx, keys, r.ID, 2*r.TTL.Milliseconds(), b.wakeups.entry(r.ID))
	return err
}

// release runs the script that releases, and wakes who waits.
func (b *backend) release(ctx context.Context, keys []string, id string, abandon ...any) (any, error) {
	knows := 1
	if b.follows { // a node of a cluster knows of its own listeners only
		knows = 0
	}
	args := append([]any{id, b.wakeups.prefix, knows}, abandon...)
	return b.run(ctx, releaseScript, keys, args...)
}
