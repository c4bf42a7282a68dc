package torture

import (
	"math/rand/v2"
	"time"
)

// Planned is one strike of a plan.
type Planned struct {
	At, Length time.Duration
	Fault      string
	Server     bool
	Lane       int
}

// Plan is the plan that a seed makes.
func Plan(seed uint64, faults []Fault, workers int, ttl, length time.Duration) (all []Planned) {
	for _, p := range plan(rand.New(rand.NewPCG(seed, 0)), faults, workers, ttl, length) { //nolint:gosec // choices
		all = append(all, Planned{p.at, p.length, p.fault.Name, p.fault.Server, p.lane})
	}
	return all
}
