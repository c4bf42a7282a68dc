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
	name    string // of the lock, at the server
	id      string
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
	switch reply, err := b.run(ctx, newCall(releaseScript, releaseKeys(g.name), g.id, b.wakeups.prefix, b.knows)); {
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

// Abandon implements driver.Driver. If a request may still be on its way, it leaves a
// tombstone, for as long as the engine goes on abandoning. A request that is on its way
// for longer takes the lock for one TTL, in which nobody renews it.
func (b *backend) Abandon(ctx context.Context, r *driver.Request) error {
	name := lockName(b.prefix, r.Key)
	tombstone := int64(0)
	if b.wakeups.underWay(r.ID) {
		tombstone = 2 * r.TTL.Milliseconds()
	}
	keys := append(releaseKeys(name), tombstoneName(name, r.ID))
	_, err := b.run(ctx, newCall(releaseScript, keys, r.ID, b.wakeups.prefix, b.knows, b.wakeups.entry(r.ID), tombstone))
	if err == nil {
		b.wakeups.left(r.ID)
	}
	return err
}

func releaseKeys(name string) []any {
	return []any{name, queueName(name), askedName(name), turnName(name)}
}
