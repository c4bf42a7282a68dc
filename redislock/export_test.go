package redislock

import (
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// NewDriver is New without the engine.
func NewDriver(client redis.UniversalClient, cfg Config) (driver.Driver, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if err := checkClient(client); err != nil {
		return nil, err
	}
	return newBackend(client, cfg, noHost{}), nil
}

// Open is what is registered, for a Config that a URL cannot give.
var Open = open

// noHost hears nothing.
type noHost struct{ driver.Host }

func (noHost) Warn(error) {}

// MostUnderWay is how many round trips there are at once.
const MostUnderWay = mostSingle + mostBatches

// UnderWay and Queued say how many there are, and how many requests wait for one.
func UnderWay(d driver.Driver) int {
	f := d.(*backend).funnel
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.single + f.batches
}

func Queued(d driver.Driver) int {
	f := d.(*backend).funnel
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.queue)
}
