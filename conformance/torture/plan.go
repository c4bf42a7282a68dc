package torture

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"
)

// planned is one strike of a plan.
type planned struct {
	at     time.Duration // after the beginning
	length time.Duration
	fault  *Fault
	lane   int // which worker; or the server, behind the workers
}

// plan spreads faults over a time: on every worker, and on the server, one after the
// other, with pauses between in which work goes on. It depends on nothing but its arguments.
func plan(rng *rand.Rand, faults []Fault, workers int, ttl, length time.Duration) []planned {
	var all []planned
	for lane := range workers + 1 {
		var fit []*Fault
		for i := range faults {
			if faults[i].Server == (lane == workers) {
				fit = append(fit, &faults[i])
			}
		}
		if len(fit) == 0 {
			continue
		}
		for at := upTo(rng, ttl); at < length; at += ttl/10 + upTo(rng, ttl) {
			p := planned{at: at, fault: fit[rng.IntN(len(fit))], lane: lane}
			if n := len(p.fault.Lengths); n > 0 {
				chosen := p.fault.Lengths[rng.IntN(n)] * float64(ttl)
				p.length = min(time.Duration(chosen)+upTo(rng, ttl/20), length-at)
			}
			all = append(all, p)
			at += p.length
		}
	}
	slices.SortStableFunc(all, byTime)
	return all
}

func byTime(a, b planned) int { return cmp.Compare(a.at, b.at) }
