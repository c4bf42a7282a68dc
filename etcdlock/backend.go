package etcdlock

import (
	"context"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// backend is the driver.
type backend struct {
	client *clientv3.Client
	owned  bool // Close closes the client
	host   driver.Host
	prefix string
	ttl    time.Duration // in whole seconds
	asked  time.Duration // what the configuration has
	limit  time.Duration // of one request
	limits limits

	life    context.Context // ends with Close
	die     context.CancelFunc
	running sync.WaitGroup // see run

	mu      sync.Mutex
	current *session
	opening *opening
	dialed  driver.Stamp      // when a failed request last had the client dial at once
	entries map[string]*entry // by request ID: what is being asked for, or may be there ungranted
	left    []string          // streams of watches that have ended, see sweep
}

func newBackend(client *clientv3.Client, cfg Config, asked time.Duration, h driver.Host) *backend {
	b := &backend{
		client: client, host: h, prefix: cfg.Prefix,
		ttl: cfg.TTL, asked: asked, limit: requestLimit(cfg.TTL),
		entries: make(map[string]*entry),
	}
	b.life, b.die = context.WithCancel(context.Background())
	b.limits = limits{life: b.life, most: b.limit}
	return b
}

// do makes a request, once. Its error is marked: see fault. Every request has a deadline, as
// a client waits for a connection for ever.
func (b *backend) do(ctx context.Context, op clientv3.Op) (clientv3.OpResponse, error) {
	switch {
	case ctx.Err() != nil:
		return clientv3.OpResponse{}, driver.Refused(ctx.Err())
	case b.client.Ctx().Err() != nil:
		return clientv3.OpResponse{}, errClientClosed
	}
	ctx, free := b.limits.bound(ctx)
	defer free()
	resp, err := b.client.Do(ctx, op)
	return resp, b.fault(err)
}

// run runs f on a goroutine of its own, for which Close waits; but none is begun once that may
// wait. backend.mu is locked.
func (b *backend) run(f func()) (begun bool) {
	if b.life.Err() != nil {
		return false
	}
	b.running.Go(f)
	return true
}

// Renew implements driver.Driver.
func (b *backend) Renew(ctx context.Context, leases []driver.Lease) []error {
	errs := make([]error, len(leases)) // usually one
	for i, l := range leases {
		errs[i] = l.(*session).renew(ctx)
	}
	return errs
}

// Inspect implements driver.Driver.
func (b *backend) Inspect(ctx context.Context, key string) (lock.Info, error) {
	queue := queueName(b.prefix, key)
	resp, err := b.do(ctx, clientv3.OpGet(queue, clientv3.WithPrefix(), clientv3.WithSort(clientv3.SortByCreateRevision, clientv3.SortAscend)))
	if err != nil {
		return lock.Info{}, err
	}
	var info lock.Info
	entries := resp.Get().Kvs
	for i, kv := range entries {
		isShared := strings.HasPrefix(string(kv.Key), queue+shared)
		if i > 0 && !(isShared && info.Holders[0].Shared) { // nor does anybody hold it who comes after
			info.Waiters = len(entries) - i
			break
		}
		_, asked, owner := parseRecord(string(kv.Value))
		info.Holders = append(info.Holders, lock.Holder{
			Owner: owner, Token: lock.Token(kv.CreateRevision), Shared: isShared, //nolint:gosec // revisions are positive
		})
		if i == 0 && b.cameFirst(ctx, queue, kv.CreateRevision) {
			info.Holders[0].Since = asked
		}
	}
	return info, nil
}

// cameFirst says whether an entry was created when there was no other, and so is held since
// then. Since when others are held is not known, nor how it was before a compaction.
func (b *backend) cameFirst(ctx context.Context, queue string, token int64) bool {
	resp, err := b.do(ctx, clientv3.OpGet(queue, clientv3.WithPrefix(), clientv3.WithCountOnly(), clientv3.WithRev(token-1)))
	return err == nil && resp.Get().Count == 0
}

// Features implements driver.Driver.
func (b *backend) Features() lock.Features {
	return lock.Fencing | lock.FIFO | lock.SharedMode | lock.Leased
}

// Prompt implements driver.Prompt: a request to etcd ends with its deadline, whatever the
// server does, and a wait with its context.
func (b *backend) Prompt() bool { return true }

// Close implements driver.Driver.
func (b *backend) Close(ctx context.Context) error {
	b.mu.Lock()
	b.die()
	b.mu.Unlock()
	var err error
	if b.owned {
		err = b.client.Close()
	}
	over := make(chan struct{})
	go func() { b.running.Wait(); close(over) }()
	select {
	case <-over:
	case <-ctx.Done():
	}
	if !b.owned {
		b.sweep(ctx)
	}
	return err
}
