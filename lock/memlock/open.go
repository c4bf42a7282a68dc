package memlock

import (
	"context"
	"fmt"
	"net/url"
	"sync"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func init() { lock.Register("mem", open) }

// shared are the servers that URLs name. They live as long as the process.
var shared = struct {
	sync.Mutex
	servers map[string]*Server
}{servers: make(map[string]*Server)}

func open(_ context.Context, u *url.URL, cfg lock.Config) (lock.Locker, error) {
	if u.Host != "" || u.Path != "" || u.User != nil || u.Fragment != "" {
		return nil, fmt.Errorf("%w: write mem:name, with a name and nothing else", lock.ErrInvalid)
	}
	if err := driver.NewQuery(u).Err(); err != nil {
		return nil, err
	}
	shared.Lock()
	server := shared.servers[u.Opaque]
	if server == nil {
		server = NewServer()
		shared.servers[u.Opaque] = server
	}
	shared.Unlock()
	return server.Locker(cfg)
}
