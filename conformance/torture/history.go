package torture

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// history is a log, put together: acquisitions with their outcomes, grants with their
// ends, what the server showed, when who was disturbed.
type history struct {
	Terms
	events   []Event
	calls    []*call  // in the order of their beginning
	grants   []*grant // in the order of their return
	seen     []*seen
	stalls   map[string][]span // by life: it was not running
	deaths   map[string]int64  // by life
	disturbs []disturbance
	began    int64
	calm     int64 // when all was healed
	last     int64
}

// name is what a grant is called: tokens of one key are unique, or that is a violation.
type name struct {
	key   string
	token uint64
}

type id struct {
	who string
	op  uint64
}

// call is one acquisition.
type call struct {
	Event
	failed *Event
	grant  *grant
}

// returned is when it returned; never: it has not.
func (c *call) returned() int64 {
	switch {
	case c.failed != nil:
		return c.failed.At
	case c.grant != nil:
		return c.grant.At
	}
	return never
}

// grant is one hold, from the return of Acquire.
type grant struct {
	Event        // Granted
	called       int64
	until        int64  // the latest end of its validity that its holder saw
	lost         *Event // or nil, as the next two
	release      *Event
	released     *Event
	end          int64 // from when its holder does not rely on it any more; see history.endOf
	died         bool  // end is the death of its process
	seen         *seen // or nil
	writes       []*write
	proved       []Event
	revived      []Event
	endedByStall bool // end is its deadline, for its process was not running
}

// write is one write to the resource.
type write struct {
	Event
	wrote, decided *Event // or nil
}

// seen is what the server showed of a grant; or, without a token, of all that one owner held
// while it was never seen free.
type seen struct {
	name
	owner       string
	shared      bool
	asked, came int64 // the question that showed it first, and its answer
	shown       int64 // the last question that showed it
	gone        int64 // the first answer that did not; never: it was still shown
}

type span struct{ from, to int64 }

// disturbance is a fault in force, on one worker or, with no name, on all.
type disturbance struct {
	span
	worker string
	fault  string
}

const never = math.MaxInt64

func newHistory(events []Event, terms Terms) *history {
	h := &history{
		Terms: terms, events: events, stalls: make(map[string][]span),
		deaths: make(map[string]int64), calm: never,
	}
	if len(events) > 0 {
		h.began, h.last = events[0].At, events[len(events)-1].At
	}
	h.collect()
	for _, g := range h.grants {
		h.endOf(g)
	}
	h.match()
	slices.SortStableFunc(h.grants, func(a, b *grant) int { return cmp.Compare(a.At, b.At) })
	return h
}

// collect takes the events apart.
func (h *history) collect() {
	calls := make(map[id]*call)
	grants := make(map[id]*grant)
	writes := make(map[uint64]*write)
	open := make(map[string]int) // of a worker and a fault: which disturbance is in force
	shows := make(map[seen]*seen)
	for i := range h.events {
		e := &h.events[i]
		c, g := calls[id{e.Who, e.Op}], grants[id{e.Who, e.Op}]
		switch e.Kind {
		case Acquire:
			c := &call{Event: *e}
			calls[id{e.Who, e.Op}] = c
			h.calls = append(h.calls, c)
		case Failed:
			if c != nil {
				c.failed = e
			}
		case Granted:
			g := &grant{Event: *e, called: e.At, until: e.Until}
			if c != nil {
				g.called, c.grant = c.At, g
			}
			grants[id{e.Who, e.Op}] = g
			h.grants = append(h.grants, g)
		case Decided:
			if w := writes[e.Value]; w != nil {
				w.decided = e
			}
		case Saw:
			s := e.sight()
			s.asked, s.came, s.shown, s.gone = e.From, e.At, e.From, never
			shows[e.sight()] = &s
			h.seen = append(h.seen, &s)
		case Gone, Showing:
			if s := shows[e.sight()]; s != nil {
				s.shown = e.From
				if e.Kind == Gone {
					s.gone = e.At
				}
			}
		case Stall:
			h.stalls[e.Who] = append(h.stalls[e.Who], span{e.From, e.At})
		case Dying, Killed, Exited:
			if _, known := h.deaths[e.Who]; !known {
				h.deaths[e.Who] = e.At
			}
		case Inject:
			open[e.Who+" "+e.Fault] = len(h.disturbs)
			h.disturbs = append(h.disturbs, disturbance{span{e.At, never}, e.Who, e.Fault})
		case Heal:
			if n, ok := open[e.Who+" "+e.Fault]; ok {
				h.disturbs[n].to = e.At
			}
		case Calm:
			h.calm = e.At
		}
		if g != nil {
			g.take(e, writes)
		}
	}
}

// sight is what an event of the observer is about.
func (e *Event) sight() seen { return seen{name: name{e.Key, e.Token}, owner: e.Who, shared: e.Shared} }

// match finds of each grant what the server showed of it. Without tokens it must be the
// only acquisition of its owner that this can have been.
func (h *history) match() {
	byName := make(map[name]*grant)
	for _, g := range h.grants {
		byName[name{g.Key, g.Token}] = g
	}
	for _, s := range h.seen {
		g := byName[s.name]
		if s.token == 0 {
			g = h.only(s)
		}
		if g != nil {
			g.seen = s
		}
	}
}

// only returns the grant that s shows, if there is but one acquisition that it can show.
func (h *history) only(s *seen) *grant {
	var only *call
	for _, c := range h.calls {
		if c.Who != s.owner || c.Key != s.key || c.Shared != s.shared || c.At > s.gone || h.settled(c, s.asked) {
			continue
		}
		if only != nil {
			return nil
		}
		only = c
	}
	if only == nil {
		return nil
	}
	return only.grant
}

// settled says whether the server has nothing of c any more at some moment: somebody has said so
// before, or there was time enough since, without a fault, to free what may have been left.
func (h *history) settled(c *call, at int64) bool {
	if c.over() < at {
		return true
	}
	since := min(h.used(c), h.died(c.Who))
	left := at - since
	return since < at && left > h.settling() && left-h.disturbed(c.Who, since, at, h.TTL) > h.settling()
}

// settling is the longest that the server has what nobody uses any more, unless there is a fault.
func (h *history) settling() int64 { return int64(h.TTL + settleBound + h.Takeover + h.Slack) }

// used is until when somebody used c: waited for it, or had the lock, or was giving it back.
func (h *history) used(c *call) int64 {
	switch {
	case c.grant == nil:
		return c.returned()
	case c.grant.released != nil:
		return c.grant.released.At
	}
	return c.grant.end
}

// died is when a process died: never, if it did not.
func (h *history) died(who string) int64 {
	if at, ok := h.deaths[who]; ok {
		return at
	}
	return never
}

// over is from when the server surely has nothing of c: never, if nobody has said so.
func (c *call) over() int64 {
	switch {
	case c.failed != nil && c.failed.Err == errHeld:
		return c.failed.At
	case c.grant != nil && c.grant.released != nil && c.grant.released.Err == "":
		return c.grant.released.At
	}
	return never
}

// take notes what belongs to a grant.
func (g *grant) take(e *Event, writes map[uint64]*write) {
	switch e.Kind {
	case Proved:
		g.until = max(g.until, e.Until)
		g.proved = append(g.proved, *e)
	case Lost:
		g.lost = e
	case Revived:
		g.revived = append(g.revived, *e)
	case Release:
		g.release = e
	case Released:
		g.released = e
	case Write:
		w := &write{Event: *e}
		writes[e.Value] = w
		g.writes = append(g.writes, w)
	case Wrote:
		if w := writes[e.Value]; w != nil {
			w.wrote = e
		}
	}
}

// endOf finds from when the holder of g does not rely on it any more: Lost was closed,
// Release was called, the process died. Nobody can close a channel in a process that does
// not run: if there is such a gap after the end of g's validity, that is the end.
func (h *history) endOf(g *grant) {
	g.end = never
	if g.lost != nil {
		g.end = g.lost.At
	}
	if g.release != nil {
		g.end = min(g.end, g.release.At)
	}
	if died := h.died(g.Who); died < g.end {
		g.end, g.died = died, true
	}
	// The pulse beats every few milliseconds: what it missed may lie that much earlier.
	if g.until < g.end && h.stalled(g.Who, g.until-int64(20*time.Millisecond), g.end) > 0 {
		g.end, g.died, g.endedByStall = g.until, false, true
	}
}

// stalled is for how long a process did not run between two moments.
func (h *history) stalled(who string, from, to int64) (sum int64) {
	for _, s := range h.stalls[who] {
		if s.from < to && s.to > from {
			sum += min(s.to, to) - max(s.from, from)
		}
	}
	return sum
}

// disturbed is for how long, between two moments, a worker did not have what it needs:
// a fault was in force, or was healed less than grace ago.
func (h *history) disturbed(who string, from, to int64, grace time.Duration) (sum int64) {
	worker := workerOf(who)
	var spans []span
	for _, d := range h.disturbs {
		until := d.to
		if until < never-int64(grace) {
			until += int64(grace)
		}
		if (d.worker == "" || d.worker == worker) && d.from < to && until > from {
			spans = append(spans, span{max(d.from, from), min(until, to)})
		}
	}
	for _, s := range h.stalls[who] {
		if s.from < to && s.to > from {
			spans = append(spans, span{max(s.from, from), min(s.to, to)})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	reached := from
	for _, s := range spans {
		if s.to > reached {
			sum += s.to - max(s.from, reached)
			reached = s.to
		}
	}
	return sum
}

// meanwhile tells what was done to those whom events are about, from two TTLs before them on.
func (h *history) meanwhile(events []Event) (told []string) {
	if len(events) == 0 {
		return nil
	}
	from, to := int64(never), int64(0)
	lives, workers := make(map[string]bool), map[string]bool{"": true}
	for _, e := range events {
		if e.At < never {
			from, to = min(from, e.At), max(to, e.At)
		}
		lives[e.Who], workers[workerOf(e.Who)] = true, true
	}
	from -= int64(2 * h.TTL)
	tell := func(who, what string, s span) {
		if s.from >= to || s.to <= from {
			return
		}
		until := "the end"
		if s.to < never {
			until = fmt.Sprintf("%.6f", time.Duration(s.to-h.began).Seconds())
		}
		told = append(told, fmt.Sprintf("%s: %s from %.6f to %s", who, what, time.Duration(s.from-h.began).Seconds(), until))
	}
	for _, d := range h.disturbs {
		if workers[d.worker] {
			tell(cmp.Or(d.worker, "all"), d.fault, d.span)
		}
	}
	for _, who := range slices.Sorted(maps.Keys(lives)) {
		for _, s := range h.stalls[who] {
			tell(who, "not running", s)
		}
	}
	return told
}

// faulty says whether a fault was in force on a worker between two moments, or was healed less
// than grace before.
func (h *history) faulty(who string, from, to int64, grace time.Duration) bool {
	worker := workerOf(who)
	return slices.ContainsFunc(h.disturbs, func(d disturbance) bool {
		return (d.worker == "" || d.worker == worker) && d.from < to && d.to > from-int64(grace)
	})
}

// workerOf returns the worker that has lived that life.
func workerOf(who string) string {
	worker, _, _ := strings.Cut(who, ".")
	return worker
}

// byKey returns the grants of each key, in the order of their tokens.
func (h *history) byKey() map[string][]*grant {
	m := make(map[string][]*grant)
	for _, g := range h.grants {
		m[g.Key] = append(m[g.Key], g)
	}
	for _, grants := range m {
		slices.SortStableFunc(grants, func(a, b *grant) int { return cmp.Compare(a.Token, b.Token) })
	}
	return m
}
