package torture

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Harness is a backend as the run needs it. It must promise [lock.Fencing]: the tokens
// tell grants apart.
type Harness struct {
	// Name is what reports call the backend. Required.
	Name string
	// TTL is that of the workers' Lockers, and what the server really grants. Required; two
	// seconds suit a real server.
	TTL time.Duration
	// URL is what a worker, counted from 0, opens with lock.Open. The package of the
	// backend must be imported.
	URL func(worker int) string
	// Open is in place of URL for a backend that lives in this process. Then workers do,
	// too, and cannot be killed or stopped.
	Open func(worker int, cfg lock.Config) (lock.Locker, error)
	// Direct opens a Locker that no fault reaches. Required.
	Direct func() (lock.Locker, error)
	// Term is how long a grant can be valid without a renewal, if that is less than the TTL.
	Term time.Duration
	// Faults are all that can be injected. Required.
	Faults []Fault
	// Takeover is how much longer than the TTL the server may keep the lock of a holder
	// that has died.
	Takeover time.Duration
}

// Options are those of a run. The zero value is one round.
type Options struct {
	// Time is how long the run takes, rounded up to whole rounds: the first has all faults
	// that break no assumption, the second none at all; the others have one fault each, in
	// an order that the seed decides; and then all again.
	Time time.Duration
	// Seed decides all choices; 0: it is chosen, and told.
	Seed uint64
	// Round is that of the first round, which other runs have had later.
	Round int
	// Only, if not "", is the one fault of all rounds, or NoFault.
	Only string
	// First ends the run with the first round that finds a violation.
	First bool
	// Length is how long faults are injected in a round; 0: five TTLs.
	Length time.Duration
	// Workers, the goroutines of each, and the keys they contend for; 0: three.
	Workers, Slots, Keys int
	// Dir is where logs and pictures of violations are left; "": the test's artifacts.
	Dir string
}

// Result is what came of a run.
type Result struct {
	Backend  string
	Features lock.Features
	Seed     uint64
	TTL      time.Duration
	Took     time.Duration
	Rows     []Row
	Margins  []Margin // see Verdict; of rounds without faults that break Ownership for every backend
	Timeline []Event  // the log of the first round

	HandOvers []time.Duration // see Verdict
}

// Row is what came of the rounds with one fault.
type Row struct {
	Fault      string
	Breaks     Assumption
	Rounds     int
	Injected   int
	Violations int
	Counts
}

// The names of the rounds with every fault that breaks nothing, and of those with none.
const (
	AllFaults = "all that break nothing"
	NoFault   = "none"
)

// run is one run.
type run struct {
	t      *testing.T
	h      *Harness
	o      Options
	direct lock.Locker
	result *Result
}

// Run tortures a backend for a while, and fails the test for each violation that it finds.
func Run(t *testing.T, h *Harness, o Options) *Result {
	t.Helper()
	o = o.withDefaults(t, h)
	r := &run{t: t, h: h, o: o}
	r.result = &Result{Backend: h.Name, Seed: o.Seed, TTL: h.TTL}
	t.Logf("torture: %s, seed %d", h.Name, o.Seed)
	var err error
	if r.direct, err = h.Direct(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.direct.Close() }()
	if err := lock.Require(r.direct, lock.Fencing); err != nil {
		t.Fatal(err)
	}
	r.result.Features = r.direct.Features()
	began := time.Now()
	for n := o.Round; n == o.Round || time.Since(began) < o.Time && (!o.First || !t.Failed()); n++ {
		name, faults := r.choose(n)
		r.round(n, name, faults)
	}
	r.result.Took = time.Since(began)
	return r.result
}

func (o Options) withDefaults(t *testing.T, h *Harness) Options {
	t.Helper()
	if h.Name == "" || h.TTL <= 0 || (h.URL == nil) == (h.Open == nil) || h.Direct == nil || len(h.Faults) == 0 {
		t.Fatal("torture: the harness needs Name, TTL, Direct, Faults, and one of URL and Open")
	}
	for o.Seed == 0 {
		o.Seed = rand.Uint64() >> 32 // short enough to be typed
	}
	o.Length = cmp.Or(o.Length, 5*h.TTL)
	o.Workers, o.Slots, o.Keys = cmp.Or(o.Workers, 3), cmp.Or(o.Slots, 3), cmp.Or(o.Keys, 3)
	if o.Workers > MaxWorkers {
		t.Fatalf("torture: %d workers are more than %d", o.Workers, MaxWorkers)
	}
	if o.Dir == "" {
		o.Dir = t.ArtifactDir()
	}
	return o
}

// breaks is what f takes away from this backend's promises.
func (r *run) breaks(f Fault) Assumption {
	if f.Resets && r.direct.Features()&lock.Leased == 0 {
		return f.Breaks | Ownership
	}
	return f.Breaks
}

// choose returns the faults of a round.
func (r *run) choose(n int) (string, []Fault) {
	all := r.h.Faults
	if r.o.Only == NoFault {
		return NoFault, nil
	}
	if r.o.Only != "" {
		i := slices.IndexFunc(all, func(f Fault) bool { return f.Name == r.o.Only })
		if i < 0 {
			r.t.Fatalf("torture: %s has no fault %q", r.h.Name, r.o.Only)
		}
		return r.o.Only, all[i : i+1]
	}
	switch cycle, place := n/(len(all)+2), n%(len(all)+2); place {
	case 0:
		return AllFaults, slices.DeleteFunc(slices.Clone(all), func(f Fault) bool { return r.breaks(f) != 0 })
	case 1:
		return NoFault, nil
	default:
		order := rand.New(rand.NewPCG(r.o.Seed, uint64(cycle)+1)).Perm(len(all)) //nolint:gosec // choices
		i := order[place-2]
		return all[i].Name, all[i : i+1]
	}
}

// round injects faults for a while, heals them, and judges what happened.
func (r *run) round(n int, name string, faults []Fault) {
	t := r.t
	path := filepath.Join(r.o.Dir, fmt.Sprintf("%s-%d-%d.ndjson", fileName(r.h.Name), r.o.Seed, n))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	rd := &round{
		run: r, faults: faults, log: &log{w: file},
		rng: rand.New(rand.NewPCG(r.o.Seed, uint64(n)<<32)), //nolint:gosec // choices
	}
	rd.play(file, n)

	if _, err := file.Seek(0, 0); err != nil {
		t.Fatal(err)
	}
	events, torn, err := ReadLog(file)
	if err != nil {
		t.Fatal(err)
	}
	row := r.row(name)
	always := Assumption(0) // broken, whatever the backend
	for _, f := range faults {
		row.Breaks |= r.breaks(f)
		always |= f.Breaks
	}
	verdict := Check(events, Terms{
		TTL: r.h.TTL, Term: r.h.Term, Features: r.direct.Features(), Breaks: row.Breaks, Takeover: r.h.Takeover, Slack: slack,
	})
	rd.judgeCrew(verdict, torn, countKind(events, Exited))
	row.Rounds++
	row.Injected += countKind(events, Inject)
	row.Violations += len(verdict.Violations)
	row.Counts.add(verdict.Counts)
	if always&Ownership == 0 {
		r.result.Margins = append(r.result.Margins, verdict.Margins...)
	}
	r.result.HandOvers = append(r.result.HandOvers, verdict.HandOvers...)
	if r.result.Timeline == nil {
		r.result.Timeline = events
	}
	if len(verdict.Violations) == 0 {
		_ = os.Remove(path)
		return
	}
	r.tell(n, name, path, verdict)
}

// judgeCrew adds what is wrong with the workers and their log, whatever is in it.
func (r *round) judgeCrew(v *Verdict, torn, ended int) {
	if torn > ended {
		v.Violations = append(v.Violations, Violation{Rule: "log", Text: fmt.Sprintf("%d lines are broken off, and %d processes ended", torn, ended)})
	}
	for _, err := range r.crew.failed {
		v.Violations = append(v.Violations, Violation{Rule: "worker", Text: err.Error()})
	}
}

// slack is what bounds of time allow for a machine that is busy with other things.
const slack = 250 * time.Millisecond

// tell fails the test.
func (r *run) tell(n int, name, path string, v *Verdict) {
	const most = 8
	r.t.Errorf("torture: %s, seed %d, round %d (%s): %d violations; the same choices again: Options{Seed: %d, Round: %d}; "+
		"the log is %s (if it is not there: go test -artifacts keeps it)",
		r.h.Name, r.o.Seed, n, name, len(v.Violations), r.o.Seed, n, path)
	for _, violation := range v.Violations[:min(most, len(v.Violations))] {
		r.t.Error(violation)
	}
	for _, p := range v.pictures {
		html := strings.TrimSuffix(path, ".ndjson") + "-" + p.name + ".html"
		f, err := os.Create(html) //nolint:gosec // where the caller has said
		if err == nil {
			err = p.draw(f)
			_ = f.Close()
		}
		r.t.Logf("torture: the picture is %s (%v)", html, err)
	}
}

func (r *run) row(fault string) *Row {
	i := slices.IndexFunc(r.result.Rows, func(row Row) bool { return row.Fault == fault })
	if i < 0 {
		i = len(r.result.Rows)
		r.result.Rows = append(r.result.Rows, Row{Fault: fault})
	}
	return &r.result.Rows[i]
}

// add adds the figures of another log.
func (c *Counts) add(d Counts) {
	c.Acquisitions += d.Acquisitions
	c.Grants += d.Grants
	c.Losses += d.Losses
	c.Deaths += d.Deaths
	c.Waiting += d.Waiting
	c.Orphans += d.Orphans
	c.Refused += d.Refused
	c.Takeover = max(c.Takeover, d.Takeover)
}

func countKind(events []Event, kind Kind) int {
	n := 0
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// fileName keeps what is harmless in a file's name.
func fileName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, s)
}
