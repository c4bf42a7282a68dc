package redislock

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// maxBatch is how many locks one script renews, while the server does nothing else:
// about a millisecond.
const maxBatch = 256

// Renew implements driver.Driver. It returns a little before the engine would give it up,
// with whatever it knows by then.
func (b *backend) Renew(ctx context.Context, leases []driver.Lease) []error {
	ctx, cancel := context.WithTimeout(ctx, b.limit*3/4)
	defer cancel()
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		return b.renewByNode(ctx, cluster, leases)
	}
	if !b.apart.Load() {
		errs := b.renew(ctx, b.client, leases, maxBatch)
		if !anyCrossesSlots(errs) {
			return errs
		}
		b.apart.Store(true) // there is a cluster behind the one address
	}
	return b.renew(ctx, b.client, leases, 1)
}

func (b *backend) renew(ctx context.Context, client redis.UniversalClient, leases []driver.Lease, batch int) []error {
	calls := make([]*call, 0, (len(leases)+batch-1)/batch)
	for some := range slices.Chunk(leases, batch) {
		var keys, args []any
		for _, l := range some {
			g := l.(*grant)
			keys = append(keys, g.name)
			args = append(args, g.id, g.ttl.Milliseconds())
		}
		calls = append(calls, newCall(renewScript, keys, args...))
	}
	runAll(ctx, client, calls)
	errs := make([]error, 0, len(leases))
	for _, c := range calls {
		errs = append(errs, c.renewed(b.fault(c.err))...)
	}
	return errs
}

// renewByNode asks the nodes of a cluster beside each other: one that hangs must not cost
// the locks of the others.
func (b *backend) renewByNode(ctx context.Context, cluster *redis.ClusterClient, leases []driver.Lease) []error {
	errs := make([]error, len(leases))
	shares := make(map[*redis.Client][]int) // of each node, which of leases
	for i, l := range leases {
		node, err := cluster.MasterForKey(ctx, l.(*grant).name)
		if err != nil {
			errs[i] = b.fault(err)
			continue
		}
		shares[node] = append(shares[node], i)
	}
	answers := make(chan share, len(shares))
	for node, which := range shares {
		go func() {
			mine := make([]driver.Lease, len(which))
			for n, i := range which {
				mine[n] = leases[i]
			}
			answers <- share{which, b.renew(ctx, node, mine, 1)}
		}()
	}
	for _, which := range shares {
		for _, i := range which {
			errs[i] = context.DeadlineExceeded // until it has answered
		}
	}
	for range shares {
		select {
		case s := <-answers:
			for n, i := range s.which {
				errs[i] = s.errs[n]
			}
		case <-ctx.Done():
			return errs
		}
	}
	return errs
}

// share is what one node answers.
type share struct {
	which []int
	errs  []error
}

// renewed returns what a call of the renewing script says of each lock.
// err is the call's own, judged.
func (c *call) renewed(err error) []error {
	errs := make([]error, c.keys)
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
