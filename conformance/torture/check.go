package torture

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/holdfast-go/holdfast/lock"
)

// Terms are what a log is judged by.
type Terms struct {
	TTL      time.Duration
	Term     time.Duration // how long a grant can be valid without a renewal; 0: the TTL
	Features lock.Features
	Breaks   Assumption // what the faults of the run have taken away
	// Takeover is how much longer than the TTL the server may keep the lock of a dead holder.
	Takeover time.Duration
	// Slack is what bounds of time allow for a busy machine, beside what its processes
	// have noticed themselves. It is allowed in no check of safety.
	Slack time.Duration
}

// Violation is a promise that was broken, and the events that show it.
type Violation struct {
	Rule   string
	Text   string
	Events []Event
	// Meanwhile are the faults that were in force then, or little before, on those whom the
	// events are about, and the times for which their processes did not run.
	Meanwhile []string

	began int64 // when the log did
}

// String names the rule and the events, a line for each, with moments in seconds after the first
// event of the log.
func (v Violation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", v.Rule, v.Text)
	for _, e := range v.Events {
		fmt.Fprintf(&b, "\n\t%s", e.since(v.began))
	}
	for _, text := range v.Meanwhile {
		fmt.Fprintf(&b, "\n\tmeanwhile: %s", text)
	}
	return b.String()
}

// Verdict is what came of a check.
type Verdict struct {
	Violations []Violation
	Counts     Counts
	// Margins are those of the grants that were lost, and not released before the server
	// let go.
	Margins []Margin
	// HandOvers are how long it took from a call of Release to the return of the next Acquire
	// that waited for it, where nothing was wrong.
	HandOvers []time.Duration
	// pictures are what Porcupine draws of what it finds illegal.
	pictures []picture
}

// Counts are figures of a log.
type Counts struct {
	Acquisitions int
	Grants       int
	Losses       int           // of grants, told to their holders, MaxHold aside
	Deaths       int           // of holders
	Waiting      int           // processes that died while an acquisition of theirs was under way
	Orphans      int           // grants that no caller ever had, for it had gone, or died
	Refused      int           // writes that came too late, and met the fence
	Takeover     time.Duration // the longest from a holder's loss or death to the next grant, if somebody waited for it
}

type picture struct {
	name string
	draw func(io.Writer) error
}

// Check judges a log.
//
// With Porcupine: exclusion (unless Ownership is broken), tokens (unless TokenOrder is), the
// fence (always).
//
// By intervals, each with the events that contradict it:
//   - exclusion: no two grants of a key are relied on at once, unless both are shared
//   - tokens: unique, and greater than those of all grants that had returned before
//   - fence: the resource never accepts less than it has accepted
//   - valid holder: no write is refused of a holder that may rely on its grant
//   - early loss: Lost has closed before the server lets go
//   - revival: a handle that was lost or released does not say that it is held
//   - release: when Release returned nil, the server does not have the grant any more
//   - residue: what the server has of an acquisition that returned no handle goes within
//     the TTL and two seconds
//   - validity: a grant is returned with a good part of its term left
//   - honesty: what was refused as held was not granted
//   - provocation: nothing is lost without a fault
//   - wake-up: who was stopped for longer than its lease is told within 50 ms of going on
//   - takeover: a dead holder keeps others out for no longer than the TTL
//   - hand-over: what is released is granted to one who waits within a second
//   - progress: a key that is free is granted to one who waits
//   - notice: who waits learns in time that it has the key
//   - order: with [lock.FIFO], nobody is granted a key before one who has waited for it longer
//   - cancellation: when its context ends, an acquisition returns within 100 ms
//   - recovery: when all is healed, every worker gets a lock
//   - close: Close returns within two seconds
func Check(events []Event, terms Terms) *Verdict {
	sortEvents(events)
	h := newHistory(events, terms)
	c := &checker{history: h, v: new(Verdict)}
	c.safety()
	c.liveness()
	c.porcupine()
	c.count()
	return c.v
}

// checker collects a verdict.
type checker struct {
	*history
	v *Verdict
}

func (c *checker) violated(rule string, events []Event, format string, args ...any) {
	c.v.Violations = append(c.v.Violations, Violation{
		Rule: rule, Text: fmt.Sprintf(format, args...), Events: events, Meanwhile: c.meanwhile(events), began: c.began,
	})
}

// proof is how a grant shows in a violation.
func (g *grant) proof() []Event {
	events := []Event{g.Event}
	if n := len(g.proved); n > 0 {
		events = append(events, g.proved[n-1])
	}
	for _, e := range []*Event{g.lost, g.release, g.released} {
		if e != nil {
			events = append(events, *e)
		}
	}
	return events
}

func (g *grant) String() string {
	return fmt.Sprintf("the grant %d of %s to %s", g.Token, g.Key, g.Who)
}

// between is how a stretch of time shows in a violation.
func between(from, to int64) string { return time.Duration(to - from).String() }

// porcupine puts the three questions.
func (c *checker) porcupine() {
	if c.Breaks == 0 {
		c.ask("exclusion", exclusion, c.operations(true))
	}
	if c.Breaks&TokenOrder == 0 {
		c.ask("tokens", tokens, c.operations(false))
	}
	c.ask("fence", fence, c.writes())
}

func (c *checker) ask(what string, step func(state, input) (bool, state), ops []porcupine.Operation) {
	const limit = time.Minute
	model := modelOf(step)
	result, info := porcupine.CheckOperationsVerbose(model, ops, limit)
	switch result {
	case porcupine.Ok:
	case porcupine.Unknown:
		c.violated(what, nil, "Porcupine could not decide within %v about %d operations", limit, len(ops))
	default:
		c.violated(what, nil, "Porcupine finds no legal order of %d operations", len(ops))
		c.v.pictures = append(c.v.pictures, picture{what, func(w io.Writer) error {
			return porcupine.Visualize(model, info, w)
		}})
	}
}

// safety checks what no delay excuses.
func (c *checker) safety() {
	owned := c.Breaks&Ownership == 0
	if owned {
		c.exclusive()
	}
	if c.Breaks&TokenOrder == 0 {
		c.ordered()
	}
	c.fenced()
	for _, g := range c.grants {
		if owned {
			c.earlyLoss(g)
			c.validHolder(g)
		}
		for _, e := range g.revived {
			c.violated("revival", append(g.proof(), e), "%v says that it is held, after it was lost or released", g)
		}
		c.releaseTruth(g)
	}
	c.honesty()
}

// exclusive checks that nobody relies on a grant when a later one is returned that excludes
// it. Tokens say which is later: the answer to the earlier may have been long on its way.
func (c *checker) exclusive() {
	for _, byToken := range c.byKey() {
		var earlier []*grant
		for _, g := range byToken {
			for _, other := range earlier {
				if other.end <= g.At || other.called > g.At || g.Shared && other.Shared {
					continue // if it was asked for only then, the tokens are wrong
				}
				c.violated("exclusion", append(other.proof(), g.proof()...),
					"%v was returned %s before %v ended", g, between(g.At, other.end), other)
			}
			earlier = append(earlier, g)
		}
	}
}

// ordered checks tokens in the order in which they could be seen.
func (c *checker) ordered() {
	for _, byReturn := range c.byKey() {
		for i, g := range byReturn[min(1, len(byReturn)):] {
			if other := byReturn[i]; other.Token == g.Token {
				c.violated("tokens", append(other.proof(), g.proof()...), "%v has the token of %v", g, other)
			}
		}
		slices.SortStableFunc(byReturn, func(a, b *grant) int { return cmp.Compare(a.At, b.At) })
		byCall := slices.SortedStableFunc(slices.Values(byReturn), func(a, b *grant) int { return cmp.Compare(a.called, b.called) })
		var greatest *grant
		next := 0
		for _, g := range byCall {
			for ; next < len(byReturn) && byReturn[next].At < g.called; next++ {
				if greatest == nil || byReturn[next].Token > greatest.Token {
					greatest = byReturn[next]
				}
			}
			if greatest != nil && g.Token <= greatest.Token && g != greatest {
				c.violated("tokens", append(greatest.proof(), g.proof()...),
					"%v was asked for after %v had returned", g, greatest)
			}
		}
	}
}

// fenced checks the resource's own record.
func (c *checker) fenced() {
	accepted := make(map[string]Event)
	for _, e := range c.events {
		if e.Kind != Decided {
			continue
		}
		last := accepted[e.Key]
		switch {
		case e.OK && e.Token < last.Token:
			c.violated("fence", []Event{last, e}, "the resource has accepted %d after %d", e.Token, last.Token)
		case !e.OK && e.Token >= last.Token:
			c.violated("fence", []Event{last, e}, "the resource has refused %d after %d", e.Token, last.Token)
		}
		if e.OK {
			accepted[e.Key] = e
		}
	}
}

// validHolder checks that no write was refused of one who could rely on its grant.
func (c *checker) validHolder(g *grant) {
	if c.Breaks&TokenOrder != 0 || g.Shared {
		return // of readers the last to come refuses the others
	}
	for _, w := range g.writes {
		if w.wrote != nil && !w.wrote.OK && w.wrote.At < g.end {
			c.violated("valid holder", append(g.proof(), w.Event, *w.wrote), "a write under %v was refused", g)
		}
	}
}

// earlyLoss checks that nobody relies on what the server has let go.
func (c *checker) earlyLoss(g *grant) {
	if c.Features&lock.Leased == 0 || g.seen == nil || g.seen.gone >= g.end {
		return
	}
	c.violated("early loss", append(g.proof(), Event{At: g.seen.gone, Kind: Gone, Who: g.seen.owner, Key: g.Key, Token: g.Token, From: g.seen.shown}),
		"the server did not have %v any more %s before its holder was told", g, between(g.seen.gone, g.end))
}

func (c *checker) releaseTruth(g *grant) {
	if g.released == nil || g.released.Err != "" || g.seen == nil || g.seen.shown <= g.released.At {
		return
	}
	c.violated("release", append(g.proof(), Event{At: g.seen.gone, Kind: Gone, Who: g.seen.owner, Key: g.Key, Token: g.Token, From: g.seen.shown}),
		"the server had %v, %s after it was released", g, between(g.released.At, g.seen.shown))
}

// honesty checks that what was refused as held was not granted: of a grant that nobody was
// told of, only a try that was refused can be the cause.
func (c *checker) honesty() {
	for _, s := range c.orphans() {
		var only *call
		count := 0
		for _, call := range c.calls {
			if call.Who == s.owner && call.Key == s.key && call.At <= s.came && call.returned() >= s.asked-int64(4*c.TTL) {
				only, count = call, count+1
			}
		}
		if count == 1 && only.Try && only.failed != nil && only.failed.Err == errHeld && s.asked > only.At {
			c.violated("honesty", []Event{only.Event, *only.failed, {At: s.came, Kind: Saw, Who: s.owner, Key: s.key, Token: s.token, From: s.asked}},
				"an acquisition was refused as held, and granted the token %d", s.token)
		}
	}
}

// orphans are grants that the server showed, and no caller ever had. Without tokens nobody
// can tell.
func (c *checker) orphans() []*seen {
	known := make(map[name]bool)
	for _, g := range c.grants {
		known[name{g.Key, g.Token}] = true
	}
	return slices.DeleteFunc(slices.Clone(c.seen), func(s *seen) bool { return s.token == 0 || known[s.name] })
}

// count fills in the figures.
func (c *checker) count() {
	n := &c.v.Counts
	n.Acquisitions, n.Grants, n.Orphans = len(c.calls), len(c.grants), len(c.orphans())
	for _, g := range c.grants {
		if g.lost != nil && g.lost.Err == errLost {
			n.Losses++
		}
		if g.died {
			n.Deaths++
		}
		for _, w := range g.writes {
			if w.wrote != nil && !w.wrote.OK && w.wrote.At >= g.end {
				n.Refused++
			}
		}
		if g.lost != nil && g.lost.Err == errLost && !g.endedByStall && g.seen != nil &&
			g.seen.gone < never && (g.release == nil || g.release.At > g.seen.gone) {
			c.v.Margins = append(c.v.Margins, Margin{time.Duration(g.seen.shown - g.lost.At), time.Duration(g.seen.gone - g.lost.At)})
		}
	}
	waiting := make(map[string]bool)
	for _, call := range c.calls {
		if _, died := c.deaths[call.Who]; died && call.returned() == never {
			waiting[call.Who] = true
		}
	}
	n.Waiting = len(waiting)
	for _, o := range c.handOvers() {
		c.v.HandOvers = append(c.v.HandOvers, o.took)
	}
	for _, t := range c.takeovers() {
		n.Takeover = max(n.Takeover, t.took)
	}
}
