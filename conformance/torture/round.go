package torture

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// round is one round of a run.
type round struct {
	*run
	faults []Fault
	rng    *rand.Rand
	log    *log
	crew   *crew
	keys   []string
}

// inForce is a fault that waits to be healed.
type inForce struct {
	planned
	heal  func()
	until time.Duration
}

// play has the workers work, and breaks things under their hands, as planned.
func (r *round) play(file *os.File, n int) {
	t, h := r.t, r.h
	for i := range r.o.Keys {
		r.keys = append(r.keys, fmt.Sprintf("torture-%d-%d-%c", r.o.Seed, n, 'a'+rune(i)))
	}
	// A path of a socket may not be long: not the test's own directory.
	dir, err := os.MkdirTemp("", "torture")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	socket := filepath.Join(dir, "resource")
	res, err := newResource(socket, r.log)
	if err != nil {
		t.Fatal(err)
	}
	defer res.close()

	stopPulse := make(chan struct{})
	var pulsing sync.WaitGroup
	pulsing.Go(func() { pulse(r.log, "test", stopPulse) })
	defer pulsing.Wait()
	defer close(stopPulse)
	watching := observe(r.log, r.direct, r.keys, h.TTL)
	defer watching.stop()

	r.crew = &crew{t: t, h: h, log: r.log, file: file, job: job{
		TTL: h.TTL, Seed: r.rng.Uint64(), Keys: r.keys, Slots: r.o.Slots, Resource: socket,
		Shared:   r.direct.Features()&lock.SharedMode != 0,
		Suicides: slices.ContainsFunc(r.faults, func(f Fault) bool { return f.kills }),
	}}
	for i := range r.o.Workers {
		w := &Worker{crew: r.crew, index: i}
		r.crew.workers = append(r.crew.workers, w)
		w.start()
	}
	r.strike(plan(r.rng, r.faults, r.o.Workers, h.TTL, r.o.Length))
	r.log.add(Event{Kind: Calm})
	r.pass(h.TTL / 2)
	r.crew.finish(2*h.TTL + 30*time.Second)
	r.awaitFree()
}

// strike injects and heals what was planned.
func (r *round) strike(all []planned) {
	began := time.Now()
	var healing []inForce
	for len(all) > 0 || len(healing) > 0 {
		if len(healing) > 0 && (len(all) == 0 || healing[0].until <= all[0].at) {
			r.pass(healing[0].until - time.Since(began))
			r.heal(healing[0])
			healing = healing[1:]
			continue
		}
		p := all[0]
		all = all[1:]
		if i := slices.IndexFunc(healing, func(f inForce) bool { return f.lane == p.lane }); i >= 0 {
			// What was injected or healed before has taken its time.
			if p.at = healing[i].until + time.Millisecond; p.at < r.o.Length {
				all = append(all, p)
				slices.SortStableFunc(all, byTime)
			}
			continue
		}
		r.pass(p.at - time.Since(began))
		if heal, ok := r.inject(p); ok {
			healing = append(healing, inForce{p, heal, time.Since(began) + p.length})
			slices.SortStableFunc(healing, func(a, b inForce) int { return cmp.Compare(a.until, b.until) })
		}
	}
	r.pass(r.o.Length - time.Since(began))
}

// pass lets time pass, and gives new lives to those who have ended theirs.
func (r *round) pass(d time.Duration) {
	const look = 10 * time.Millisecond
	end := time.Now().Add(d)
	for {
		r.crew.revive()
		left := time.Until(end)
		if left <= 0 {
			return
		}
		time.Sleep(min(left, look))
	}
}

func (r *round) worker(p planned) *Worker {
	if p.fault.Server {
		return nil
	}
	return r.crew.workers[p.lane]
}

// note logs a step of a fault.
func (r *round) note(kind Kind, p planned) {
	e := Event{Kind: kind, Fault: p.fault.Name}
	if w := r.worker(p); w != nil {
		e.Who = w.name()
	}
	r.log.add(e)
}

func (r *round) inject(p planned) (heal func(), ok bool) {
	w := r.worker(p)
	if w != nil && !w.alive() {
		return nil, false
	}
	r.note(Inject, p)
	heal = p.fault.Inject(Strike{Worker: w, Length: p.length, TTL: r.h.TTL, Keys: r.keys, Rand: r.rng})
	r.note(Injected, p)
	return heal, true
}

func (r *round) heal(f inForce) {
	if f.heal != nil {
		f.heal()
	}
	r.note(Heal, f.planned)
}

// awaitFree waits until the server has nothing left, for as long as it may have, and more.
func (r *round) awaitFree() {
	end := time.Now().Add(r.h.TTL + settleBound + r.h.Takeover + 2*slack)
	for time.Now().Before(end) {
		if r.allFree() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (r *round) allFree() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	for _, key := range r.keys {
		if info, err := r.direct.Inspect(ctx, key); err != nil || len(info.Holders) > 0 {
			return false
		}
	}
	return true
}
