package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

var inspectCases = []Case{
	{"Inspect", "Inspect says who holds the key, without taking it", nil, func(k *check) {
		a, b := k.open(), k.open()
		if info := k.inspect(b, k.key); len(info.Holders) != 0 || info.Key != k.key {
			k.broken("Inspect of a free key: %+v", info)
		}
		h := k.acquire(a, k.key)
		for _, l := range []lock.Locker{a, b} {
			info := k.inspect(l, k.key)
			if len(info.Holders) != 1 {
				k.broken("Inspect of a held key: %+v", info)
			}
			holder := info.Holders[0]
			if holder.Shared || holder.Token != 0 && holder.Token != tokenOf(h) {
				k.broken("Inspect shows %+v, and the handle's token is %d", holder, tokenOf(h))
			}
		}
		k.held(h)
		k.release(h)
		if info := k.inspect(a, k.key); len(info.Holders) != 0 {
			k.broken("Inspect after the release: %+v", info)
		}
		k.release(k.free(b, k.key))
	}},
	{"InspectShowsOwner", "Inspect shows the holder's Owner, whatever its text", []fault{openConfig}, func(k *check) {
		b := k.open()
		for _, owner := range []string{"host-1:4711:nightly", "a|b, \"c\" {d} %20 / é 日本", " "} {
			l := k.openConfig(lock.Config{Owner: owner})
			h := k.acquire(l, k.key)
			info := k.inspect(b, k.key)
			if len(info.Holders) != 1 || info.Holders[0].Owner != "" && info.Holders[0].Owner != owner {
				k.broken("Inspect shows %+v, want the owner %q", info, owner)
			}
			k.release(h)
		}
	}},
	{"InspectBesideAcquire", "Inspect while a key is acquired, for the first time too, is no error and excludes nobody", nil, func(k *check) {
		const looking, keys = 4, 10
		l, base := k.open(), k.newKey("inspect")
		var lookers []lock.Locker
		for range looking {
			lookers = append(lookers, k.open())
		}
		for i := range keys {
			key := fmt.Sprint(base, "-", i)
			ctx, stop := context.WithCancel(k.ctx)
			var wg sync.WaitGroup
			errs := make(chan error, looking)
			for _, other := range lookers {
				wg.Go(func() { errs <- lookUntil(ctx, other, key) })
			}
			for range 3 {
				k.release(k.free(l, key))
			}
			stop()
			k.within(k.longest(), "the end of the looks", wg.Wait)
			for range looking {
				if err := <-errs; err != nil {
					k.broken("Inspect of a key that is acquired and released: %v", err)
				}
			}
		}
	}},
}

// lookUntil inspects key over and over until ctx ends, which is no failure.
func lookUntil(ctx context.Context, l lock.Locker, key string) error {
	for ctx.Err() == nil {
		info, err := l.Inspect(ctx, key)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if len(info.Holders) > 1 {
			return fmt.Errorf("it shows %d holders", len(info.Holders))
		}
	}
	return nil
}

var configCases = []Case{
	{"ConfigIsChecked", "times are checked: negative or out of range is ErrInvalid, nothing is rounded silently", []fault{openConfig}, func(k *check) {
		for _, cfg := range []lock.Config{
			{TTL: -1},
			{TTL: -time.Second},
			{TTL: math.MinInt64},
			{TTL: 1},
			{TTL: 999 * time.Microsecond},
			{TTL: time.Millisecond},
			{TTL: lock.MinTTL - 1},
			{TTL: lock.MaxTTL + 1},
			{TTL: 10000 * time.Hour},
			{TTL: math.MaxInt64},
			{Owner: "two\nlines"},
			{Owner: string(make([]byte, 300))},
			{TokenBase: math.MaxUint64},
		} {
			l, err := k.h.OpenConfig(k.T, cfg)
			if err == nil {
				_ = l.Close()
			}
			if !errors.Is(err, lock.ErrInvalid) {
				k.broken("opening with %+v: error %v, want ErrInvalid", cfg, err)
			}
		}
	}},
	{"OptionsAreChecked", "options are checked before anything is sent: ErrInvalid, and nothing is held", nil, func(k *check) {
		a, b := k.open(), k.open()
		for name, opt := range map[string]lock.Option{
			"nil": nil, "Wait(-1)": lock.Wait(-1), "MaxHold(-1)": lock.MaxHold(-1), "Margin(-1)": lock.Margin(-1),
			"Wait(-1s)": lock.Wait(-time.Second), "MaxHold(-1s)": lock.MaxHold(-time.Second), "Margin(-1s)": lock.Margin(-time.Second),
			"Wait(min)": lock.Wait(math.MinInt64), "MaxHold(min)": lock.MaxHold(math.MinInt64), "Margin(max)": lock.Margin(math.MaxInt64),
			"Margin(TTL)": lock.Margin(k.ttl), "Margin(TTL/2)": lock.Margin(k.ttl / 2),
		} {
			_, tryErr := k.try(a, k.key, opt)
			_, err := k.tryAcquireWith(k.ctx, a, k.key, true, opt)
			for _, err := range []error{tryErr, err} {
				if !errors.Is(err, lock.ErrInvalid) {
					k.broken("option %s: error %v, want ErrInvalid", name, err)
				}
			}
		}
		k.release(k.free(b, k.key))
	}},
	{"EventsTell", "Observe is told of what happens, and may ask the handle", []fault{openConfig, revoke}, func(k *check) {
		var log eventLog
		a, b := k.openConfig(lock.Config{Observe: log.observe}), k.open()
		taken := k.acquire(b, k.key)
		k.taken(a, k.key)
		k.release(taken)
		h := k.acquire(a, k.key)
		log.ask(h)
		k.pause(k.ttl / 2)
		k.release(h)
		h = k.acquire(a, k.key)
		k.h.Revoke(k.T, k.key)
		k.awaitLoss(h, k.ttl+k.slack)
		k.pause(k.ttl / 20)
		for _, kind := range []lock.EventKind{lock.Contended, lock.Failed, lock.Acquired, lock.Renewed, lock.Released, lock.LostLock} {
			if _, ok := log.find(kind, k.key); !ok && kind != lock.Renewed {
				k.broken("no event of kind %q", kind)
			}
		}
		if ev, _ := log.find(lock.LostLock, k.key); !errors.Is(ev.Err, lock.ErrLost) || ev.Token != tokenOf(h) {
			k.broken("the event of a loss is %+v", ev)
		}
	}},
}

// eventLog is an observer.
type eventLog struct {
	handle atomic.Value // lock.Handle
	mu     sync.Mutex
	events []lock.Event
}

func (l *eventLog) observe(_ context.Context, ev lock.Event) {
	if h, ok := l.handle.Load().(lock.Handle); ok {
		_ = h.Err() // would deadlock if the observer were called with a lock held
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, ev)
}

func (l *eventLog) ask(h lock.Handle) { l.handle.Store(h) }

func (l *eventLog) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = nil
}

func (l *eventLog) find(kind lock.EventKind, key string) (lock.Event, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.events, func(ev lock.Event) bool { return ev.Kind == kind && ev.Key == key })
	if i < 0 {
		return lock.Event{}, false
	}
	return l.events[i], true
}

func (k *check) inspect(l lock.Locker, key string) lock.Info {
	k.Helper()
	var info lock.Info
	var err error
	k.within(k.longest(), "Inspect", func() { info, err = l.Inspect(k.ctx, key) })
	if err != nil {
		k.broken("Inspect: %v", err)
	}
	return info
}
