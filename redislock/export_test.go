package redislock

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock"
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

// NewWithHeadStart is New for a Locker whose waiters need so long to take a lock.
func NewWithHeadStart(client redis.UniversalClient, cfg Config, start time.Duration) (lock.Locker, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return driver.New(func(h driver.Host) (driver.Driver, error) {
		b := newBackend(client, cfg, h)
		b.wakeups.need = func(context.Context) (time.Duration, error) { return start, nil }
		return b, nil
	}, cfg.Config)
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
