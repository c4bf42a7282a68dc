package torture

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Bounds that are promised whatever the TTL.
const (
	wakeBound    = 50 * time.Millisecond
	cancelBound  = 100 * time.Millisecond
	closeBound   = 2 * time.Second
	settleBound  = 2 * time.Second        // beyond the TTL
	noticeBound  = time.Second            // until one who waits looks by itself whether a key is free
	orderBound   = 100 * time.Millisecond // from the call to a place in the queue
	minValidPart = 2                      // of the term that is left of a grant, before its margin
)

// liveness checks what must happen in time.
func (c *checker) liveness() {
	c.validity()
	c.provocation()
	c.wakeUp()
	c.residue()
	c.takeover()
	c.handOver()
	c.progress()
	c.notice()
	c.order()
	c.cancellation()
	c.endings()
}

// validity checks that grants are returned with time to use them. Between the last look of
// the Locker and its caller's first there may be as much as Slack, on a busy machine.
func (c *checker) validity() {
	promised := cmp.Or(c.Term, c.TTL)/minValidPart - marginOf(c.TTL) // not every grant has one
	for _, g := range c.grants {
		least := int64(promised-c.Slack) - c.stalled(g.Who, g.called, g.Until)
		if g.Limit == 0 && c.Features&lock.Leased != 0 && g.Until-g.At < least {
			c.violated("validity", g.proof(), "%v is returned with %s left", g, between(g.At, g.Until))
		}
	}
}

// provocation checks that what was lost was lost by a fault, of the time of a lease ago
// at most: one that was healed just before a renewal was due may have cost it.
func (c *checker) provocation() {
	for _, g := range c.grants {
		if g.lost == nil || g.lost.Err == errMaxHold || g.lost.Err == errClosed {
			continue
		}
		at := g.lost.At
		if c.disturbed(g.Who, at-int64(2*c.TTL), at, c.TTL/4) == 0 {
			c.violated("provocation", g.proof(), "%v was lost, and there was no fault", g)
		}
	}
}

// wakeUp checks that whoever was stopped for longer than a lease lasts is told soon after.
// Nothing that was sent before can have proved more.
func (c *checker) wakeUp() {
	for _, g := range c.grants {
		for _, s := range c.stalls[g.Who] {
			if g.At > s.from || time.Duration(s.to-s.from) < c.TTL || g.until >= s.to {
				continue
			}
			told := int64(never)
			for _, e := range []*Event{g.lost, g.release} {
				if e != nil {
					told = min(told, e.At)
				}
			}
			if died, ok := c.deaths[g.Who]; ok {
				told = min(told, died)
			}
			bound := int64(wakeBound + c.Slack)
			if told == never {
				told = c.last
			}
			if told-s.to > bound+c.stalled(g.Who, s.to, told) {
				c.violated("wake-up", append(g.proof(), Event{At: s.to, Kind: Stall, Who: g.Who, From: s.from}),
					"%v was told %s after it had been stopped for %s", g, between(s.to, told), between(s.from, s.to))
			}
		}
	}
}

// residue checks what the server has of acquisitions that returned no handle.
func (c *checker) residue() {
	calls := make(map[string][]*call)
	for _, call := range c.calls {
		calls[call.Who+" "+call.Key] = append(calls[call.Who+" "+call.Key], call)
	}
	orphans := c.orphans()
	for _, s := range c.seen {
		switch of := calls[s.owner+" "+s.key]; {
		case s.token == 0:
			c.unused(s, of)
		case slices.Contains(orphans, s):
			since := s.came
			for _, call := range of {
				if call.At <= s.came {
					since = max(since, min(call.returned(), c.died(s.owner)))
				}
			}
			c.left(s, span{since, s.shown}, c.settling())
		}
	}
	for _, g := range c.grants {
		if g.seen != nil && g.seen.gone == never && c.calm < never {
			if since := max(g.end, c.calm); g.end < never && g.seen.shown-since > c.settling() {
				c.violated("residue", g.proof(), "the server still has %v", g)
			}
		}
	}
}

// unused checks what has no token, and may be of any of its owner's calls for the key. While none
// of them is under way or holds, it is of no use to anybody. While there are such as came to
// nothing, one of them may have it, and not know: but not for long, and then it is left behind.
func (c *checker) unused(s *seen, calls []*call) {
	if c.leftBetween(s, calls, c.settling()) {
		return
	}
	calls = slices.DeleteFunc(slices.Clone(calls), func(call *call) bool { return call.failed != nil })
	c.leftBetween(s, calls, c.settling()+int64(c.TTL+noticeBound+c.Slack))
}

// leftBetween checks the stretches of s between the calls, in the order of their beginning.
func (c *checker) leftBetween(s *seen, calls []*call, bound int64) bool {
	since := s.came
	for _, call := range calls {
		if call.At <= s.shown && c.left(s, span{since, call.At}, bound) {
			return true
		}
		if call.At <= s.shown {
			since = max(since, min(c.used(call), c.died(s.owner)))
		}
	}
	return c.left(s, span{since, s.shown}, bound)
}

// left checks that the server did not have s, which nobody held, for all of a stretch of time.
func (c *checker) left(s *seen, in span, bound int64) bool {
	length := in.to - in.from // below zero, if something may still come of it
	if length <= bound || length-c.disturbed(s.owner, in.from, in.to, c.TTL) <= bound {
		return false
	}
	c.violated("residue", []Event{{At: s.gone, Kind: Gone, Who: s.owner, Key: s.key, Token: s.token, From: s.shown}},
		"the server had what nobody holds for %s", between(in.from, in.to))
	return true
}

// handOver is from the end of one grant to the next.
type handOver struct {
	from, to *grant
	since    int64 // the end of the one, or the call of the other
	took     time.Duration
}

// takeovers are the hand-overs from those who died or lost.
func (c *checker) takeovers() []handOver {
	var all []handOver
	for _, grants := range c.byKey() {
		slices.SortStableFunc(grants, func(a, b *grant) int { return cmp.Compare(a.At, b.At) })
		for i, g := range grants[:max(0, len(grants)-1)] {
			if !g.died && (g.lost == nil || g.lost.Err != errLost) {
				continue
			}
			next := grants[i+1]
			since := max(g.end, next.called)
			if g.end < never && next.At > since {
				all = append(all, handOver{g, next, since, time.Duration(next.At - since)})
			}
		}
	}
	return all
}

func (c *checker) takeover() {
	for _, t := range c.takeovers() {
		bound := int64(c.TTL + c.Takeover + c.Slack)
		if !t.from.died || int64(t.took) <= bound {
			continue
		}
		if int64(t.took)-c.disturbed(t.to.Who, t.since, t.to.At, c.TTL) > bound {
			c.violated("takeover", append(t.from.proof(), t.to.proof()...), "%v came %v after the death of its last holder", t.to, t.took)
		}
	}
}

// handOvers are those from holders that released to others who waited already, while all was well
// with everybody: one who is cut off, or has died, may be in the queue for the time of a lease, and
// be granted the key before those behind. The time for which a process did not run is taken off.
func (c *checker) handOvers() []handOver {
	var all []handOver
	for _, grants := range c.byKey() {
		slices.SortStableFunc(grants, func(a, b *grant) int { return cmp.Compare(a.At, b.At) })
		for i, next := range grants {
			last := lastReleased(grants[:i], next.At-int64(3*c.TTL))
			if last == nil || next.called > last.release.At || next.At < last.release.At {
				continue
			}
			since := last.release.At
			if !c.quiet(since, next.At) {
				continue
			}
			stalled := c.stalled(last.Who, since, next.At) + c.stalled(next.Who, since, next.At)
			all = append(all, handOver{last, next, since, time.Duration(next.At - since - stalled)})
		}
	}
	return all
}

// quiet says whether no fault was in force on anybody between two moments, nor had been so shortly
// before that something of it may have been left at the server.
func (c *checker) quiet(from, to int64) bool {
	from -= int64(c.TTL + c.Takeover + settleBound)
	for _, at := range c.deaths {
		if at > from && at < to && at < c.calm {
			return false
		}
	}
	return !slices.ContainsFunc(c.disturbs, func(d disturbance) bool { return d.from < to && d.to > from })
}

// lastReleased returns the grant that was released last: nil, if one that ended after a moment was
// not released at all, and may have been kept for longer.
func lastReleased(grants []*grant, after int64) (last *grant) {
	for _, g := range grants {
		if g.released == nil || g.released.Err != "" {
			if g.end > after {
				return nil
			}
			continue
		}
		if last == nil || g.release.At > last.release.At {
			last = g
		}
	}
	return last
}

func (c *checker) handOver() {
	for _, o := range c.handOvers() {
		if o.took > noticeBound+c.Slack {
			c.violated("hand-over", append(o.from.proof(), o.to.proof()...), "%v came %v after the release that it waited for", o.to, o.took)
		}
	}
}

// progress checks that nobody waits for what is free.
func (c *checker) progress() {
	shown := make(map[string][]span)
	for _, s := range c.seen {
		shown[s.key] = append(shown[s.key], span{s.asked, s.gone})
	}
	bound := int64(c.TTL + noticeBound + c.Slack)
	for key, held := range shown {
		slices.SortFunc(held, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		free := span{0, 0}
		for i := range len(held) + 1 {
			free.to = c.last
			if i < len(held) {
				free.to = held[i].from
			}
			if free.from > 0 && free.to-free.from > bound {
				c.waitedFor(key, free, bound)
			}
			if i < len(held) {
				free.from = max(free.from, held[i].to)
			}
		}
	}
}

// waitedFor looks for one who waited for a key while it was free.
func (c *checker) waitedFor(key string, free span, bound int64) {
	for _, call := range c.calls {
		from, to := max(call.At, free.from), min(call.returned(), free.to)
		if died, ok := c.deaths[call.Who]; ok {
			to = min(to, died)
		}
		if call.Key != key || call.Try || to-from <= bound {
			continue
		}
		if to-from-c.disturbed(call.Who, from, to, c.TTL) > bound {
			c.violated("progress", []Event{call.Event}, "it waited for %s for %s while that was free", key, between(from, to))
		}
	}
}

// notice checks that who waits learns that the key is its own. Where the queue is the server's,
// the first in it has the key, known or not, and keeps all others out.
func (c *checker) notice() {
	orphans := c.orphans()
	for _, call := range c.calls {
		if call.Try {
			continue
		}
		bound := int64(c.TTL + noticeBound + c.Slack)
		var s *seen
		if call.grant != nil {
			s = call.grant.seen
		} else { // of an outcome that is not known the server may have something for longer
			s, bound = c.unnoticed(call, orphans), bound+int64(settleBound+c.Takeover)
		}
		if s == nil || s.token == 0 {
			continue
		}
		from, to := max(call.At, s.came), min(call.returned(), c.died(call.Who))
		if call.grant == nil {
			to = min(to, s.shown)
		}
		if to-from > bound && to-from-c.disturbed(call.Who, from, to, c.TTL) > bound {
			c.violated("notice", []Event{call.Event, {At: s.came, Kind: Saw, Who: s.owner, Key: s.key, Token: s.token, From: s.asked}},
				"it had %s, and waited for it for another %s", s.key, between(from, to))
		}
	}
}

// unnoticed returns which of the orphans the server showed of a call that waited in vain: nil, if
// that cannot be told from what it showed of others.
func (c *checker) unnoticed(of *call, orphans []*seen) *seen {
	var only *seen
	for _, s := range orphans {
		if s.owner != of.Who || s.key != of.Key || s.came < of.At || s.asked > of.returned() {
			continue
		}
		other := func(o *call) bool {
			return o != of && o.Who == of.Who && o.Key == of.Key && o.At <= s.came && o.returned() >= s.asked
		}
		if only != nil || slices.ContainsFunc(c.calls, other) {
			return nil
		}
		only = s
	}
	return only
}

// order checks that those who want a key alone are served in the order in which they came,
// where that is promised: of each Locker only the first to wait stands in the queue, as soon as it
// has what it takes to stand there.
func (c *checker) order() {
	if c.Features&lock.FIFO == 0 {
		return
	}
	bound := int64(orderBound + c.Slack)
	for _, g := range c.grants {
		if g.Shared {
			continue
		}
		for _, call := range c.calls {
			if call.Key != g.Key || call.Shared || call.Try || call.Who == g.Who || call.At+bound > g.called {
				continue
			}
			until := min(call.returned(), c.died(call.Who))
			bound := bound + c.stalled(call.Who, call.At, until)
			if call.At+bound > g.called || g.At+bound > until || !c.first(call) || !c.ready(call) ||
				c.faulty(call.Who, call.At, until, c.TTL+c.Takeover+settleBound) {
				continue
			}
			c.violated("order", append([]Event{call.Event}, g.proof()...), "%v was asked for %s after another, who still waited %s later",
				g, between(call.At, g.called), between(g.At, until))
		}
	}
}

// first says whether nobody else of its process wanted the key when c was called, or had it.
func (h *history) first(c *call) bool {
	return !slices.ContainsFunc(h.calls, func(o *call) bool {
		if o == c || o.Who != c.Who || o.Key != c.Key || o.At > c.At {
			return false
		}
		switch {
		case o.failed == nil: // what was lost may be kept for a while
			return !h.settled(o, c.At)
		case o.failed.Err == errUnavailable: // it is being given up
			return o.failed.At+int64(orderBound+h.Slack) >= c.At
		}
		return o.failed.At >= c.At
	})
}

// ready says whether the process of c had a session at the server, or whatever else it needs to get
// into a queue, when c was called: something was granted to it before, and since then it has lost
// nothing, and there was nothing by which it could have. Who has to open a session first, on a
// busy machine, comes late through no fault of the queue.
func (h *history) ready(c *call) bool {
	for _, g := range slices.Backward(h.grants) {
		if g.Who == c.Who && g.At <= c.At {
			return !h.shaken(c.Who, g.At, c.At)
		}
	}
	return false
}

// shaken says whether a process can have lost its session between two moments.
func (h *history) shaken(who string, from, to int64) bool {
	lost := func(g *grant) bool {
		return g.Who == who && g.lost != nil && g.lost.Err == errLost && g.lost.At >= from && g.lost.At <= to
	}
	stopped := func(s span) bool { return s.from < to && s.to > from && s.to-s.from > int64(h.TTL/4) }
	return slices.ContainsFunc(h.grants, lost) || slices.ContainsFunc(h.stalls[who], stopped) || h.faulty(who, from, to, h.TTL)
}

func (c *checker) cancellation() {
	for _, call := range c.calls {
		if call.failed == nil || call.failed.Until == 0 {
			continue
		}
		since := max(call.At, call.failed.Until)
		took := call.failed.At - since
		if bound := int64(cancelBound + c.Slack); took > bound && took-c.stalled(call.Who, since, call.failed.At) > bound {
			c.violated("cancellation", []Event{call.Event, *call.failed}, "it returned %v after its context had ended", time.Duration(took))
		}
	}
}

// endings checks what workers do when all is healed.
func (c *checker) endings() {
	closing := make(map[string]int64)
	for _, e := range c.events {
		switch e.Kind {
		case Final:
			if e.Err != "" {
				c.violated("recovery", []Event{e}, "when all was healed, %s could not get %s", e.Who, e.Key)
			}
		case Close:
			closing[e.Who] = e.At
		case Closed:
			since := closing[e.Who]
			if took := e.At - since - c.stalled(e.Who, since, e.At); took > int64(closeBound+c.Slack) {
				c.violated("close", []Event{e}, "Close took %v", time.Duration(took))
			}
		}
	}
}
