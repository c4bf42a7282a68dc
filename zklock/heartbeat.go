package zklock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// What proves a session.
//
// Only the leader ends sessions. It counts a session's timeout from when it last heard of
// it, and that is not when the client was last answered: a follower notes who has sent it
// something, and tells the leader in its answer to the leader's next ping, of which there
// are two in each tick. Nor does a request that the follower passes on to the leader count
// as a sign of life. So a follower that is cut off from its leader goes on answering pings
// and reads, and proves nothing; and even a write that succeeds proves only that the
// follower and the leader have met, not that the leader has heard of the session lately.
//
// A heartbeat is a write, and each is followed, a little more than the time between two
// pings later, by a second one. Say that the heartbeat at time t was answered, then the
// second, then a further write, all on one connection to one follower:
//
//   - the follower knew of the client at t or later, for it has passed on the heartbeat;
//   - before it answered the second write, the follower had got the leader's news of it,
//     and, as they come in order, the ping that the leader had sent after the heartbeat was
//     answered;
//   - before the further write reached the leader, so had, in order, the answer to that ping,
//     with the client in it, or in an answer before.
//
// So when the further write is answered the leader has counted from t or later, whatever the
// network did meanwhile, and whoever was paused. One case is left open: that in the leader the
// one thread that sends pings stands still, while the others agree to the second write, and
// that the network then holds up what it sends until the further write, and cuts off what comes
// back.
//
// A further write is the next heartbeat. A connection itself is such a sign, too: the follower
// asks the leader whether the session lives, and the leader counts from then; that it was the
// leader, the next write proves. If the client speaks to the leader itself, all this holds with
// room to spare.
//
// A new leader gives every session its whole timeout.
//
// A heartbeat counts if what it proves is not older than a quarter of the timeout and half a
// tick: that is what Term subtracts. Heartbeats are a third of the term apart, which is less
// than a quarter of the timeout by a sixth of a tick.

// term returns what can be relied on after a heartbeat.
func term(timeout, tick time.Duration) time.Duration { return timeout - timeout/4 - tick/2 }

// pingGap is surely more than the time between two pings of a leader.
func pingGap(tick time.Duration) time.Duration { return tick/2 + tick/20 }

// pulse is what is proved of a session.
type pulse struct {
	mu    sync.Mutex
	gen   uint64        // the connection
	known driver.Stamp  // a sign of life that the leader will have heard of when the next write is answered
	news  chan struct{} // if not nil, closed when either changes
}

// connected notes a new connection, which began then.
func (p *pulse) connected(gen uint64, began driver.Stamp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gen, p.known = gen, began
	p.tell()
}

// followed notes that the second write after a sign of life was answered.
func (p *pulse) followed(gen uint64, sign driver.Stamp) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gen == p.gen && sign > p.known {
		p.known = sign
		p.tell()
	}
}

func (p *pulse) tell() {
	if p.news != nil {
		close(p.news)
		p.news = nil
	}
}

// get returns what the next write proves if it is answered on that connection, and a channel
// that is closed when there is more to prove.
func (p *pulse) get() (gen uint64, known driver.Stamp, news <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.news == nil {
		p.news = make(chan struct{})
	}
	return p.gen, p.known, p.news
}

// is says whether the connection is still that one.
func (p *pulse) is(gen uint64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gen == gen
}

// Renew implements driver.Driver.
func (b *backend) Renew(ctx context.Context, leases []driver.Lease) []error {
	errs := make([]error, len(leases))
	var renewals sync.WaitGroup
	for i, l := range leases {
		renewals.Go(func() { errs[i] = l.(*session).renew(ctx) })
	}
	renewals.Wait()
	return errs
}

// renew proves the session.
func (s *session) renew(ctx context.Context) error {
	asked := driver.Now()
	enough := asked.Add(s.b.term - s.b.cfg.TTL)
	for {
		gen, err := s.link.ready(ctx)
		if err != nil {
			return s.renewFault(err)
		}
		_, known, news := s.pulse.get()
		sent := driver.Now()
		if err := s.beat(ctx); err != nil {
			if ctx.Err() != nil && driver.Now().Sub(sent) >= s.b.patience {
				s.link.reset(gen) // another server may do better
			}
			return s.renewFault(err)
		}
		if !s.pulse.is(gen) {
			continue // what was known was of the last connection
		}
		go s.follow(gen, sent)
		if known >= enough { // the second write has nothing to say of this heartbeat
			s.watches.tend()
			return nil
		}
		// What is known is too old: the process was stopped, say. The second write may take
		// longer than there is time now: then the next try finds what it has proved.
		select {
		case <-news:
		case <-s.ended:
			return lostWith(s.over())
		case <-ctx.Done():
			return fmt.Errorf("heartbeat: what was answered proves too little yet: %w", context.Cause(ctx))
		}
	}
}

// renewFault returns an error as Renew does.
func (s *session) renewFault(err error) error {
	if cause := s.over(); cause != nil {
		return lostWith(cause)
	}
	return err
}

// follow makes the second write after a sign of life. It waits for as long as a leader's
// ping takes to come: no event tells of that. It depends on the session alone, as it has
// something to say of the heartbeats to come.
func (s *session) follow(gen uint64, sign driver.Stamp) {
	gap := time.NewTimer(pingGap(s.b.cfg.Tick))
	defer gap.Stop()
	select {
	case <-gap.C:
	case <-s.ended:
		return
	}
	ctx, cancel := context.WithTimeout(s.link.life, s.b.cfg.TTL/4)
	defer cancel()
	if s.pulse.is(gen) && s.beat(ctx) == nil {
		s.pulse.followed(gen, sign)
	}
}

// beat writes to the session's node. If it is answered, the server was not cut off from
// the others, and knows all that they had agreed on before.
func (s *session) beat(ctx context.Context) error {
	_, err := call(ctx, s, func() (struct{}, error) {
		_, err := s.conn.Set(s.node, []byte(s.b.cfg.Owner), -1)
		return struct{}{}, err
	})
	if errors.Is(err, zk.ErrNoNode) { // somebody has removed it, and this is a write as well
		err = s.makeNode(ctx)
	}
	if err != nil {
		return fmt.Errorf("heartbeat: %w", err)
	}
	return nil
}
