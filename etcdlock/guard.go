package etcdlock

import (
	"context"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// guard sees to it that a session is told at once if an entry that it holds is deleted by
// somebody else.
//
// A watch costs the server as much as a lock does, and this side two goroutines. So only a
// lock that has been held for a moment gets one; and if there are many, one watch over all
// deletions under the prefix stands for all of theirs.
type guard struct {
	s       *session
	granted chan struct{} // something was granted
	ask     chan struct{} // a renewal asks for a sign of life of the watches

	// Guarded by backend.mu.
	recent []*entry // that were granted, and not looked at yet
	single int      // watches over one entry
	wide   bool     // there is one over all
}

const (
	moment    = 100 * time.Millisecond
	mostGuard = 64
)

// run has a goroutine of its own, as it waits for that moment. It ends with ctx.
func (g *guard) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.ask:
			g.s.sight.requestProgress(ctx)
		case <-g.granted:
			held := g.take()
			if sleep(ctx, moment) == nil {
				g.cover(ctx, held)
			}
		}
	}
}

// take takes what was granted lately.
func (g *guard) take() []*entry {
	b := g.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	recent := g.recent
	g.recent = nil
	return recent
}

// cover has those of the entries watched that are still held.
func (g *guard) cover(ctx context.Context, held []*entry) {
	b := g.s.b
	b.mu.Lock()
	bare := slices.DeleteFunc(held, func(e *entry) bool { return !e.granted || e.unguard != nil })
	if wide := g.wide || g.single+len(bare) > mostGuard; wide {
		began := !g.wide
		g.wide = true
		keys := make([]rival, len(bare))
		for i, e := range bare {
			e.unguard = func() {}
			keys[i] = rival{e.name, e.token}
		}
		b.mu.Unlock()
		if began {
			b.running.Go(func() { // by run, which runs
				g.keep(ctx, locksUnder(b.prefix), g.held, clientv3.WithPrefix())
			})
			return
		}
		// It may have been in place only after they were created.
		if g.verify(ctx, keys) != nil { // again, then
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, e := range bare {
				e.unguard = nil
			}
			g.add(bare...)
		}
		return
	}
	defer b.mu.Unlock()
	for _, e := range bare {
		g.watch(ctx, e)
	}
}

// add notes what is to be covered. backend.mu is locked.
func (g *guard) add(entries ...*entry) {
	g.recent = append(g.recent, entries...)
	select {
	case g.granted <- struct{}{}:
	default:
	}
}

// watch has e watched, until it is released or lost. backend.mu is locked.
func (g *guard) watch(ctx context.Context, e *entry) {
	b := g.s.b
	ctx, cancel := context.WithCancel(ctx)
	g.single++
	e.unguard = func() { cancel(); g.single-- }
	this := []rival{{e.name, e.token}}
	// It has a goroutine of its own, as the client tells what it sees over a channel.
	b.run(func() {
		g.keep(ctx, e.name, func() []rival { return this })
	})
}

// keep keeps a watch of deletions until ctx ends. held returns the entries that it is over.
//
// It begins with what is deleted from now on: a watch from an earlier revision is served by
// the server only every 100 ms until it has caught up. So when it is in place everything is
// read that may have changed unseen; that covers all ways in which a watch can end:
// compaction, a member without a leader, a connection that is deaf.
func (g *guard) keep(ctx context.Context, key string, held func() []rival, opts ...clientv3.OpOption) {
	const least = 100 * time.Millisecond
	most := min(g.s.ttl/3, 5*time.Second)
	warned := false
	for pause := least; ctx.Err() == nil; pause = min(2*pause, most) { // what ended it may end the next one at once
		worked, err := g.follow(ctx, key, held, opts)
		if text, permanent := remedy(err); permanent && !warned {
			warned = true
			g.s.b.host.Warn(fmt.Errorf("the watch of deletions: %w; %s", err, text))
		}
		if worked {
			pause = least
		} else {
			_ = g.verify(ctx, held()) // or after the next pause
		}
		_ = sleep(ctx, pause)
	}
}

// follow watches until the watch ends, and says whether it has ever been in place.
func (g *guard) follow(ctx context.Context, key string, held func() []rival, opts []clientv3.OpOption) (worked bool, err error) {
	w := g.s.sight.watch(ctx, key, opts...)
	defer g.s.sight.ended(w)
	for resp := range w.told {
		if err := resp.Err(); err != nil {
			return worked, err
		}
		g.s.sight.heard(w, resp)
		if resp.Created {
			if err := g.verify(w.ctx, held()); err != nil {
				return worked, err
			}
			worked = true
		}
		for _, ev := range resp.Events {
			g.s.b.deleted(g.s, string(ev.Kv.Key), ev.Kv.ModRevision)
		}
	}
	return worked, nil
}

// held returns the entries that are granted.
func (g *guard) held() []rival {
	b := g.s.b
	b.mu.Lock()
	defer b.mu.Unlock()
	var held []rival
	for name, e := range g.s.names {
		if e.granted {
			held = append(held, rival{name, e.token})
		}
	}
	return held
}

// verify looks whether entries are still there.
func (g *guard) verify(ctx context.Context, held []rival) error {
	const most = 100 // operations in a transaction; etcd takes 128, unless told otherwise
	b := g.s.b
	for some := range slices.Chunk(held, most) {
		ops := make([]clientv3.Op, len(some))
		for i, e := range some {
			ops[i] = clientv3.OpGet(e.name, clientv3.WithKeysOnly())
		}
		resp, err := b.do(ctx, clientv3.OpTxn(nil, ops, nil))
		if err != nil {
			return err
		}
		for i, e := range some {
			if firstKey(resp.Txn().Responses[i]).GetCreateRevision() != e.token {
				b.deleted(g.s, e.name, e.token+1)
			}
		}
	}
	return nil
}

// sleep sleeps for d. Its error is that of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
