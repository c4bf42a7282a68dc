package zklock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// backend is the driver.
type backend struct {
	servers  []string
	cfg      Config
	host     driver.Host
	term     time.Duration // of a session
	patience time.Duration // for a heartbeat, before another server is tried

	mu       sync.Mutex
	sessions []*session        // that are not over
	places   map[string]*place // by request ID: in line, or perhaps
	closed   bool
}

// promptSlack is what a call of a [driver.Prompt] may take longer, where it is excused.
const promptSlack = 10 * time.Second

// maxPatience is less than the engine gives to one renewal, however long the term: that has
// ended with a server that is mute before it is known to be.
const maxPatience = 4 * time.Second

func newBackend(servers []string, cfg Config, h driver.Host) *backend {
	b := &backend{
		servers: servers, cfg: cfg, host: h,
		term: term(cfg.TTL, cfg.Tick), places: make(map[string]*place),
	}
	b.patience = min(b.term/8, maxPatience)
	return b
}

// sessionFor returns a session that has room for one more path of that length, and has
// reserved it.
func (b *backend) sessionFor(ctx context.Context, path int) (*session, error) {
	s, err := b.withRoom(path)
	if err != nil {
		return nil, err
	}
	if err := s.await(ctx); err != nil {
		s.free(path)
		return nil, err
	}
	return s, nil
}

func (b *backend) withRoom(path int) (*session, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, driver.Refused(lock.ErrClosed)
	}
	for _, s := range b.sessions {
		if s.over() == nil && s.reserve(path) {
			return s, nil
		}
	}
	s, err := b.newSession()
	if err != nil {
		return nil, driver.Permanent(err)
	}
	s.reserve(path)
	b.sessions = append(b.sessions, s)
	return s, nil
}

// drop takes a session that is over off the list: nothing new is granted on it.
func (b *backend) drop(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions = slices.DeleteFunc(b.sessions, func(o *session) bool { return o == s })
}

// Inspect implements driver.Driver.
func (b *backend) Inspect(ctx context.Context, key string) (lock.Info, error) {
	s, err := b.sessionFor(ctx, 0)
	if err != nil {
		return lock.Info{}, err
	}
	dir := lockNode(b.cfg.Root, key)
	if _, err := call(ctx, s, func() (string, error) { return s.conn.Sync(dir) }); err != nil {
		return lock.Info{}, err
	}
	for {
		info, err := s.inspect(ctx, dir)
		if !errors.Is(err, zk.ErrNoNode) { // a holder has gone meanwhile
			return info, err
		}
	}
}

func (s *session) inspect(ctx context.Context, dir string) (info lock.Info, err error) {
	names, err := s.children(ctx, dir)
	if errors.Is(err, zk.ErrNoNode) {
		return info, nil
	}
	if err != nil {
		return info, err
	}
	var line []member
	for _, name := range names {
		if m, ok := parseMember(name); ok {
			line = append(line, m)
		}
	}
	slices.SortFunc(line, member.compare)
	for i, m := range line {
		if i > 0 && !(m.shared && line[0].shared) {
			break // it waits, and all behind it
		}
		h, err := s.holder(ctx, dir+"/"+m.name)
		if err != nil {
			return info, err
		}
		h.Shared = m.shared
		info.Holders = append(info.Holders, h)
	}
	info.Waiters = len(line) - len(info.Holders)
	return info, nil
}

// holder reads the node of a holder. When its turn came, the server does not know.
func (s *session) holder(ctx context.Context, path string) (lock.Holder, error) {
	return call(ctx, s, func() (lock.Holder, error) {
		owner, stat, err := s.conn.Get(path)
		if err != nil {
			return lock.Holder{}, err
		}
		return lock.Holder{Owner: string(owner), Token: lock.Token(stat.Czxid)}, nil //nolint:gosec // it is not negative
	})
}

// Prompt implements driver.Prompt: see askOn. A question that package zk has not sent when its
// connection breaks is answered when there is a new one, or with the session at the latest.
func (b *backend) Prompt() bool { return b.term <= promptSlack }

// Features implements driver.Driver.
func (b *backend) Features() lock.Features {
	return lock.Fencing | lock.FIFO | lock.SharedMode | lock.Leased
}

// Close implements driver.Driver.
func (b *backend) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	sessions := slices.Clone(b.sessions)
	b.mu.Unlock()
	var closing sync.WaitGroup
	for _, s := range sessions {
		closing.Go(func() { _ = s.End(ctx) })
	}
	closing.Wait()
	return nil
}
