package driver_test

import (
	"context"
	"testing"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// BenchmarkPair times what the engine adds to acquire and release: the driver below it
// answers at once, on a lease of each grant's own or on a shared one.
func BenchmarkPair(b *testing.B) {
	for name, shared := range map[string]bool{"OwnLeases": false, "Sessions": true} {
		for called, prompt := range map[string]bool{"Here": true, "Apart": false} {
			b.Run(name+"/"+called, func(b *testing.B) { benchPair(b, shared, prompt) })
		}
	}
}

func benchPair(b *testing.B, shared, prompt bool) {
	f := &fake{}
	var d driver.Driver = f
	if prompt {
		d = promptFake{f}
	}
	session := &fakeLease{f: f, term: ttl}
	if shared {
		f.acquire = func(context.Context, *driver.Request) (driver.Grant, error) { return f.grant(session), nil }
	}
	l, err := driver.New(func(h driver.Host) (driver.Driver, error) {
		f.host = h
		return d, nil
	}, lock.Config{TTL: ttl})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	if shared {
		f.host.Keep(session, driver.Now())
	}
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		h, err := l.TryAcquire(ctx, "bench")
		if err != nil {
			b.Fatal(err)
		}
		if err := h.Release(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
