package zklock

import (
	"context"
	"errors"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// grant is one lock: a node, on a session that many share.
type grant struct {
	s     *session
	path  string
	size  int
	token lock.Token
	freed sync.Once
}

// Token implements driver.Grant.
func (g *grant) Token() (lock.Token, bool) { return g.token, true }

// Lease implements driver.Grant.
func (g *grant) Lease() driver.Lease { return g.s }

// Proved implements driver.Grant.
func (g *grant) Proved() driver.Stamp { return g.s.opened }

// free takes the path off the session's count. The node has gone, or goes with the session.
func (g *grant) free() { g.freed.Do(func() { g.s.free(g.size) }) }

// Release implements driver.Grant. Once it is granted, no other node has its path, ever: it can
// be removed again and again.
func (g *grant) Release(ctx context.Context) error {
	g.s.watches.release(g.path)
	err := g.s.remove(ctx, g.path)
	switch {
	case err == nil:
	case errors.Is(err, zk.ErrNoNode):
		err = lock.ErrLost
	case g.s.gone():
		err = lostWith(g.s.over())
	default: // the end of a session that was given up may not have come to the servers
		return bare(err)
	}
	g.free()
	return err
}
