package etcdlock

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// NewDriver is New without the engine.
func NewDriver(client *clientv3.Client, cfg Config) (driver.Driver, error) {
	asked := cfg.TTL
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return newBackend(client, cfg, asked, noHost{}), nil
}

// noHost hears nothing.
type noHost struct{}

func (noHost) Keep(driver.Lease, driver.Stamp) {}
func (noHost) LeaseLost(driver.Lease, error)   {}
func (noHost) GrantLost(string, error)         {}
func (noHost) Warn(error)                      {}

// Booked is how many requests and names a driver has on its books.
func Booked(d driver.Driver) (requests, names int) {
	b := d.(*backend)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.current != nil {
		names = len(b.current.names)
	}
	return len(b.entries), names
}
