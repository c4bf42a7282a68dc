package torture

import (
	"context"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// observer asks the server who holds each key, over a connection that no fault touches.
// An answer is true of some moment between its question and its arrival: so a
// grant was there after the last question that showed it, and gone before the first answer
// that did not.
type observer struct {
	log    *log
	locker lock.Locker
	keys   []string
	every  time.Duration
	shown  map[string]map[shown]int64 // by key: when the last question was asked that showed it
	ended  chan struct{}
	done   sync.WaitGroup
}

// shown is a grant as the server shows it. Some servers know no tokens: of these, what one
// owner holds again and again may look like one grant.
type shown struct {
	token  uint64
	owner  string
	shared bool
}

func observe(l *log, locker lock.Locker, keys []string, ttl time.Duration) *observer {
	o := &observer{
		log: l, locker: locker, keys: keys, every: ttl / 250,
		shown: make(map[string]map[shown]int64), ended: make(chan struct{}),
	}
	for _, key := range keys {
		o.shown[key] = make(map[shown]int64)
	}
	o.done.Go(o.run)
	return o
}

// stop ends it, and logs what is still shown.
func (o *observer) stop() {
	close(o.ended)
	o.done.Wait()
	for _, key := range o.keys {
		o.look(key)
		for s, last := range o.shown[key] {
			o.log.add(Event{Kind: Showing, Who: s.owner, Key: key, Token: s.token, Shared: s.shared, From: last})
		}
	}
}

func (o *observer) run() {
	for {
		for _, key := range o.keys {
			o.look(key)
		}
		select {
		case <-o.ended:
			return
		case <-time.After(o.every):
		}
	}
}

func (o *observer) look(key string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	asked := now()
	info, err := o.locker.Inspect(ctx, key)
	at := now()
	if err != nil {
		return // nothing is known
	}
	known := o.shown[key]
	for _, h := range info.Holders {
		s := shown{uint64(h.Token), h.Owner, h.Shared}
		if _, ok := known[s]; !ok {
			o.log.add(Event{At: at, Kind: Saw, Who: s.owner, Key: key, Token: s.token, Shared: s.shared, From: asked})
		}
		known[s] = asked
	}
	for s, last := range known {
		if last == asked {
			continue
		}
		o.log.add(Event{At: at, Kind: Gone, Who: s.owner, Key: key, Token: s.token, Shared: s.shared, From: last})
		delete(known, s)
	}
}
