package torture_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/lock"
)

const ttl = time.Second

// ms counts from a moment long after the start of the machine, as real logs do.
func ms(n int64) int64 { return int64(time.Hour) + n*int64(time.Millisecond) }

// script writes a history by hand, in milliseconds.
type script struct {
	events []torture.Event
	ops    uint64
}

func (s *script) add(e torture.Event) *script {
	s.events = append(s.events, e)
	return s
}

func (s *script) on(kind torture.Kind, at int64, who string) *script {
	return s.add(torture.Event{At: ms(at), Kind: kind, Who: who})
}

// grant is an acquisition of k that succeeds; its handle is valid for a TTL less 30 ms.
func (s *script) grant(who string, token uint64, call, at int64) *held {
	return s.grantMode(who, token, call, at, false)
}

func (s *script) grantMode(who string, token uint64, call, at int64, shared bool) *held {
	return s.grantOf("k", who, token, call, at, shared)
}

// opened is a lock of its own that somebody has for a moment: by then it has a session.
func (s *script) opened(who string, at int64) *script {
	s.ops++
	s.grantOf(fmt.Sprint("own-", s.ops), who, 1, at-2, at, false).released(at+1, at+2)
	return s
}

func (s *script) grantOf(key, who string, token uint64, call, at int64, shared bool) *held {
	s.ops++
	g := &held{s, torture.Event{Who: who, Op: s.ops, Key: key, Token: token, Shared: shared}}
	e := g.Event
	e.Kind, e.At, e.Token = torture.Acquire, ms(call), 0
	s.add(e)
	return g.on(torture.Granted, at, func(e *torture.Event) { e.Until = ms(at + 970) })
}

// held is a grant of a script.
type held struct {
	s *script
	torture.Event
}

func (g *held) on(kind torture.Kind, at int64, set ...func(*torture.Event)) *held {
	e := g.Event
	e.Kind, e.At = kind, ms(at)
	for _, f := range set {
		f(&e)
	}
	g.s.add(e)
	return g
}

func (g *held) lost(at int64) *held {
	return g.on(torture.Lost, at, func(e *torture.Event) { e.Err = "lost" })
}

// maxHold says that what is lost was held for as long as it might be.
func maxHold(e *torture.Event) { e.Err = "max hold" }

func (g *held) released(call, at int64) *held {
	return g.on(torture.Release, call).on(torture.Released, at)
}

// seen is what the observer says: shown first and last when asked at from and to, and gone
// by the answer at gone.
func (g *held) seen(from, to, gone int64) *held {
	g.on(torture.Saw, from+1, func(e *torture.Event) { e.From = ms(from) })
	return g.on(torture.Gone, gone, func(e *torture.Event) { e.From = ms(to) })
}

// unnamed is seen where the server shows no tokens.
func (g *held) unnamed(from, to, gone int64) *held {
	e := g.Event
	e.Op, e.Token = 0, 0
	(&held{g.s, e}).seen(from, to, gone)
	return g
}

func (g *held) wrote(call, decided, at int64, value uint64, ok bool, fence uint64) *held {
	g.on(torture.Write, call, func(e *torture.Event) { e.Value = value })
	answer := func(e *torture.Event) { e.Value, e.OK, e.Fence = value, ok, fence }
	g.on(torture.Decided, decided, answer, func(e *torture.Event) { e.Who, e.Op = "", 0 })
	if at > 0 {
		g.on(torture.Wrote, at, answer)
	}
	return g
}

func (s *script) try(who string, call, at int64, err string) *script {
	s.ops++
	e := torture.Event{Kind: torture.Acquire, Who: who, Op: s.ops, Key: "k", At: ms(call), Try: true}
	s.add(e)
	e.Kind, e.At, e.Err = torture.Failed, ms(at), err
	return s.add(e)
}

// waits are some that come to nothing, one after the other, and each as long.
func (s *script) waits(who string, n, length int64) *script {
	for i := range n {
		s.try(who, i*length, (i+1)*length-5, "context")
		s.events[len(s.events)-2].Try = false
	}
	return s
}

// fault is one in force on a worker.
func (s *script) fault(worker string, from, to int64) *script {
	e := torture.Event{Kind: torture.Inject, Who: worker, Fault: "partition", At: ms(from)}
	s.add(e)
	e.Kind, e.At = torture.Heal, ms(to)
	return s.add(e)
}

func (s *script) stall(who string, from, to int64) *script {
	return s.add(torture.Event{Kind: torture.Stall, Who: who, From: ms(from), At: ms(to)})
}

var histories = []struct {
	name   string
	rules  []string // that are violated: none, the history is legal
	breaks torture.Assumption
	write  func(*script)
}{
	{"one after the other", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).seen(3, 40, 55).released(40, 50)
		s.grant("w1.1", 2, 10, 46).seen(45, 80, 99).released(90, 95)
	}},
	{"the same end and beginning", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 10, 40).released(90, 95)
	}},
	{"two at once", []string{"exclusion", "exclusion"}, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 10, 39).released(90, 95)
	}},
	{"two at once, after a deletion", nil, torture.Ownership, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 10, 39).released(90, 95)
	}},
	{"two at once, by goroutines of one process", []string{"exclusion", "exclusion"}, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w0.1", 2, 10, 20).released(30, 35)
	}},
	{"readers together", nil, 0, func(s *script) {
		s.grantMode("w0.1", 1, 0, 5, true).released(80, 90)
		s.grantMode("w1.1", 2, 0, 6, true).released(40, 50)
		s.grant("w2.1", 3, 10, 85).released(100, 101)
	}},
	{"a writer beside a reader", []string{"exclusion", "exclusion"}, 0, func(s *script) {
		s.grantMode("w0.1", 1, 0, 5, true).released(80, 90)
		s.grantMode("w1.1", 2, 0, 6, true).released(40, 50)
		s.grant("w2.1", 3, 10, 60).released(100, 101)
	}},
	{"a token twice", []string{"tokens", "tokens", "exclusion", "tokens"}, 0, func(s *script) {
		s.grant("w0.1", 7, 0, 5).released(10, 20)
		s.grant("w1.1", 7, 30, 35).released(40, 50)
	}},
	{"a token that is smaller", []string{"tokens", "exclusion", "tokens"}, 0, func(s *script) {
		s.grant("w0.1", 7, 0, 5).released(10, 20)
		s.grant("w1.1", 6, 30, 35).released(40, 50)
	}},
	{"a token that is smaller, from a server that has forgotten", nil, torture.Ownership | torture.TokenOrder, func(s *script) {
		s.grant("w0.1", 7, 0, 5).released(10, 20)
		s.grant("w1.1", 6, 30, 35).released(40, 50)
	}},
	{"lost before the server lets go", nil, 0, func(s *script) {
		s.fault("w0", 10, 2000).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(975)
		s.grant("w1.1", 2, 10, 1004).released(1010, 1015)
	}},
	{"lost too late", []string{"early loss"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(1010)
	}},
	{"lost too late, and granted", []string{"exclusion", "early loss", "exclusion"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(1010)
		s.grant("w1.1", 2, 10, 1004).released(1020, 1025)
	}},
	{"lost late by one that was stopped", nil, 0, func(s *script) {
		s.fault("w0", 10, 2000).stall("w0.1", 10, 2005).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(2006)
		s.grant("w1.1", 2, 10, 1004).released(1010, 1015)
	}},
	{"not told when it wakes", []string{"wake-up"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).stall("w0.1", 10, 2005).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(2406)
	}},
	{"never told", []string{"wake-up"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).stall("w0.1", 10, 2005).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005)
		s.on(torture.Calm, 3000, "")
	}},
	{"let go while one that is stopped is valid", []string{"exclusion", "early loss", "exclusion"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).stall("w0.1", 10, 2005).grant("w0.1", 1, 0, 5).seen(3, 800, 805).lost(2006)
		s.grant("w1.1", 2, 10, 804).released(1100, 1115)
	}},
	{"stopped before, and lost too late", []string{"exclusion", "early loss", "exclusion"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).stall("w0.1", 10, 600).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(1010)
		s.grant("w1.1", 2, 10, 1004).released(1020, 1025)
	}},
	{"a late write is refused", nil, 0, func(s *script) {
		s.fault("w0", 10, 3000).grant("w0.1", 1, 0, 5).lost(975).wrote(1020, 1021, 1022, 1, false, 2)
		s.grant("w1.1", 2, 10, 1004).wrote(1010, 1011, 1012, 2, true, 2).released(1030, 1040)
	}},
	{"a late write is accepted", []string{"fence", "fence"}, 0, func(s *script) {
		s.fault("w0", 10, 3000).grant("w0.1", 1, 0, 5).lost(975).wrote(1020, 1021, 1022, 1, true, 1)
		s.grant("w1.1", 2, 10, 1004).wrote(1010, 1011, 1012, 2, true, 2).released(1030, 1040)
	}},
	{"a late write whose answer nobody read is accepted", []string{"fence", "fence"}, 0, func(s *script) {
		s.on(torture.Killed, 1030, "w0.1").fault("w0", 10, 3000)
		s.grant("w0.1", 1, 0, 5).lost(975).wrote(1020, 1021, 0, 1, true, 1)
		s.grant("w1.1", 2, 10, 1004).wrote(1010, 1011, 1012, 2, true, 2).released(1030, 1040)
	}},
	{"a holder is refused", []string{"fence", "valid holder", "fence"}, 0, func(s *script) {
		s.grant("w0.1", 5, 0, 5).wrote(10, 11, 12, 1, false, 0).released(20, 21)
	}},
	{"revived", []string{"revival"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).grant("w0.1", 1, 0, 5).lost(975).on(torture.Revived, 990)
	}},
	{"released, and still there", []string{"release"}, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).seen(3, 60, 65).released(40, 50)
	}},
	{"released, and asked about before", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).seen(3, 49, 60).released(40, 50)
	}},
	{"returned with nothing left", []string{"validity"}, 0, func(s *script) {
		g := s.grant("w0.1", 1, 0, 5)
		s.events[len(s.events)-1].Until = ms(100)
		g.released(40, 50)
	}},
	{"returned on a busy machine", nil, 0, func(s *script) {
		g := s.grant("w0.1", 1, 0, 5)
		s.events[len(s.events)-1].Until = ms(150)
		g.released(40, 50)
	}},
	{"lost for nothing", []string{"provocation"}, 0, func(s *script) { s.grant("w0.1", 1, 0, 5).lost(500) }},
	{"lost by the fault of another", []string{"provocation"}, 0, func(s *script) {
		s.fault("w1", 100, 400).grant("w0.1", 1, 0, 5).lost(500)
	}},
	{"left behind for a while", nil, 0, func(s *script) {
		s.try("w0.1", 0, 500, "unavailable")
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(100, 2000, 2005)
	}},
	{"left behind", []string{"residue"}, 0, func(s *script) {
		s.try("w0.1", 0, 500, "unavailable")
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(100, 6000, 6005)
	}},
	{"left behind by the dead", []string{"residue"}, 0, func(s *script) {
		s.on(torture.Acquire, 0, "w0.1").on(torture.Killed, 200, "w0.1")
		s.events[0].Key = "k"
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(100, 6000, 6005)
	}},
	{"refused as held, and granted", []string{"honesty"}, 0, func(s *script) {
		s.try("w0.1", 0, 20, "held")
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(10, 100, 105)
	}},
	{"refused as held, and granted to another who died", nil, 0, func(s *script) {
		s.try("w0.1", 0, 20, "held").on(torture.Killed, 90, "w0.1")
		s.add(torture.Event{Kind: torture.Acquire, Who: "w0.1", Op: 9, Key: "k", At: ms(30)})
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(95, 1000, 1005)
	}},
	{"unknown, and granted", nil, 0, func(s *script) {
		s.try("w0.1", 0, 20, "unavailable")
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(10, 100, 105)
	}},
	{"taken over from the dead", nil, 0, func(s *script) {
		s.on(torture.Killed, 500, "w0.1").grant("w0.1", 1, 0, 5)
		s.grant("w1.1", 2, 10, 1400).released(1410, 1420)
	}},
	{"taken over too late", []string{"takeover"}, 0, func(s *script) {
		s.on(torture.Killed, 500, "w0.1").grant("w0.1", 1, 0, 5)
		s.grant("w1.1", 2, 10, 2000).released(2010, 2020)
	}},
	{"two at once, one of them dying", []string{"exclusion", "exclusion"}, 0, func(s *script) {
		s.on(torture.Killed, 500, "w0.1").grant("w0.1", 1, 0, 5)
		s.grant("w1.1", 2, 10, 400).released(600, 601)
	}},
	{"free, and waited for", []string{"hand-over", "progress"}, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).seen(3, 30, 35).released(32, 34)
		s.grant("w1.1", 2, 10, 3000).seen(2999, 3005, 3015).released(3010, 3012)
	}},
	{"released, and granted late to one who waited", []string{"hand-over"}, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 10, 1310).released(1320, 1325)
	}},
	{"released, and asked for late", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 60, 1340).released(1350, 1355)
	}},
	{"released, and granted late to one that was cut off", nil, 0, func(s *script) {
		s.fault("w1", 100, 1200).grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 10, 1310).released(1320, 1325)
	}},
	{"released, and granted late because of a third who has died in the queue", nil, 0, func(s *script) {
		s.on(torture.Killed, 30, "w2.1").grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 10, 1310).released(1320, 1325)
	}},
	{"released, and granted late because of a third who was cut off", nil, 0, func(s *script) {
		s.fault("w2", 20, 500).grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w1.1", 2, 10, 1310).released(1320, 1325)
	}},
	{"released by one, and kept by another", nil, 0, func(s *script) {
		s.grantMode("w0.1", 1, 0, 5, true).released(1300, 1301)
		s.grantMode("w1.1", 2, 0, 6, true).released(40, 50)
		s.grant("w2.1", 3, 10, 1310).released(1320, 1325)
	}},
	{"has the key, and does not learn of it", []string{"notice"}, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 2600).seen(100, 2640, 2655).released(2645, 2650)
	}},
	{"has the key, and learns of it in time", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 1600).seen(100, 1640, 1655).released(1645, 1650)
	}},
	{"has the key, and was cut off", nil, 0, func(s *script) {
		s.fault("w0", 110, 1000).grant("w0.1", 1, 0, 2600).seen(100, 2640, 2655).released(2645, 2650)
	}},
	{"has the key, and waits for it in vain", []string{"notice"}, 0, func(s *script) {
		s.try("w0.1", 10, 6000, "context")
		s.events[0].Try, s.events[1].Try = false, false
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(100, 5990, 6005)
	}},
	{"has or had the key, or another of its process", nil, 0, func(s *script) {
		s.try("w0.1", 5, 6001, "context")
		s.try("w0.1", 10, 6000, "context")
		for i := range s.events {
			s.events[i].Try = false
		}
		(&held{s, torture.Event{Who: "w0.1", Key: "k", Token: 1}}).seen(100, 5990, 6005)
	}},
	{"passed by one who came later", []string{"order"}, 0, func(s *script) {
		s.opened("w2.1", -50).grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed by one who came later, in a queue of its own process", nil, 0, func(s *script) {
		s.opened("w2.1", -50).grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.try("w2.1", 5, 1300, "context")
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed by one who came little later", nil, 0, func(s *script) {
		s.opened("w2.1", -50).grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 200, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed while it was cut off", nil, 0, func(s *script) {
		s.opened("w2.1", -50).fault("w2", 100, 300).grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed, and given up", []string{"order"}, 0, func(s *script) {
		s.opened("w2.1", -50).grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.try("w2.1", 10, 1395, "context")
		s.events[len(s.events)-2].Try = false
	}},
	{"passed, and it may have had no session before", nil, 0, func(s *script) {
		s.opened("w2.0", -50) // in another life
		s.grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed, and a fault may have cost it the session that it had", nil, 0, func(s *script) {
		s.opened("w2.1", -9000).fault("w2", -8000, -7000)
		s.grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed, with a session from after a fault", []string{"order"}, 0, func(s *script) {
		s.opened("w2.1", -9000).fault("w2", -8000, -7000).opened("w2.1", -4000)
		s.grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed, and it had been stopped", nil, 0, func(s *script) {
		s.opened("w2.1", -9000).stall("w2.1", -8000, -7600)
		s.grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed, and it had lost something", nil, 0, func(s *script) {
		s.fault("w2", -9900, -9800)
		s.opened("w2.1", -8500)
		s.grantOf("mine", "w2.1", 5, -9700, -9600, false).lost(-8000)
		s.grant("w0.1", 1, 0, 5).released(900, 905)
		s.grant("w1.1", 2, 400, 910).released(1400, 1405)
		s.grant("w2.1", 3, 10, 1410).released(1420, 1425)
	}},
	{"passed, and what it has lost may still be its own", nil, 0, func(s *script) {
		s.opened("w2.1", -9000)
		s.grantOf("k", "w2.1", 1, -2700, -2690, false).on(torture.Lost, -2500, maxHold)
		s.grant("w0.1", 3, 0, 5).released(900, 905)
		s.grant("w1.1", 4, 400, 910).released(1400, 1405)
		s.grant("w2.1", 5, 10, 1410).released(1420, 1425)
	}},
	{"passed, long after it has lost the key", []string{"order"}, 0, func(s *script) {
		s.opened("w2.1", -9000)
		s.grantOf("k", "w2.1", 1, -4700, -4690, false).on(torture.Lost, -4500, maxHold)
		s.grant("w0.1", 3, 0, 5).released(900, 905)
		s.grant("w1.1", 4, 400, 910).released(1400, 1405)
		s.grant("w2.1", 5, 10, 1410).released(1420, 1425)
	}},
	{"passed, just after something of it may have been left in the queue", nil, 0, func(s *script) {
		s.opened("w2.1", -9000)
		s.try("w2.1", -500, -200, "unavailable")
		s.grant("w0.1", 3, 0, 5).released(900, 905)
		s.grant("w1.1", 4, 400, 910).released(1400, 1405)
		s.grant("w2.1", 5, 10, 1410).released(1420, 1425)
	}},
	{"passed, a while after something of it may have been left in the queue", []string{"order"}, 0, func(s *script) {
		s.opened("w2.1", -9000)
		s.try("w2.1", -900, -600, "unavailable")
		s.grant("w0.1", 3, 0, 5).released(900, 905)
		s.grant("w1.1", 4, 400, 910).released(1400, 1405)
		s.grant("w2.1", 5, 10, 1410).released(1420, 1425)
	}},
	{"cancelled, and back at once", nil, 0, func(s *script) {
		s.try("w0.1", 0, 290, "context")
		s.events[1].Until = ms(200)
	}},
	{"cancelled, and not back", []string{"cancellation"}, 0, func(s *script) {
		s.try("w0.1", 0, 900, "context")
		s.events[1].Until = ms(200)
	}},
	{"without tokens, held again and again", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.grant("w0.1", 2, 52, 55).unnamed(3, 6005, 6015).released(6000, 6010)
	}},
	{"without tokens, released and asked for again", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).released(40, 50)
		s.try("w0.1", 55, 65, "unavailable")
		s.grant("w1.1", 2, 10, 90).released(91, 92)
		(&held{s, torture.Event{Who: "w0.1", Key: "k"}}).unnamed(3, 70, 80)
	}},
	{"without tokens, released and still there", []string{"release"}, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).unnamed(3, 60, 65).released(40, 50)
	}},
	{"without tokens, released and still there, or of an outcome that is not known", nil, 0, func(s *script) {
		s.try("w0.1", -3000, -2900, "unavailable")
		s.grant("w0.1", 1, 0, 5).unnamed(3, 60, 65).released(40, 50)
	}},
	{"without tokens, released and still there, long after an outcome that is not known", []string{"release"}, 0, func(s *script) {
		s.try("w0.1", -4000, -3900, "unavailable")
		s.grant("w0.1", 1, 0, 5).unnamed(3, 60, 65).released(40, 50)
	}},
	{"without tokens, and cut off after an outcome that is not known", nil, 0, func(s *script) {
		s.fault("w0", -3900, -2000).try("w0.1", -4000, -3900, "unavailable")
		s.grant("w0.1", 1, 0, 5).unnamed(3, 60, 65).released(40, 50)
	}},
	{"without tokens, left behind", []string{"residue"}, 0, func(s *script) {
		s.try("w0.1", 0, 500, "unavailable")
		(&held{s, torture.Event{Who: "w0.1", Key: "k"}}).unnamed(100, 6000, 6005)
	}},
	{"without tokens, left behind by one that goes on to wait", []string{"residue"}, 0, func(s *script) {
		s.waits("w0.1", 20, 500)
		(&held{s, torture.Event{Who: "w0.1", Key: "k"}}).unnamed(100, 9000, 9005)
	}},
	{"without tokens, left behind for a while by one that goes on to wait", nil, 0, func(s *script) {
		s.waits("w0.1", 10, 500)
		(&held{s, torture.Event{Who: "w0.1", Key: "k"}}).unnamed(100, 5000, 5005)
	}},
	{"without tokens, left behind by one that was cut off", nil, 0, func(s *script) {
		s.fault("w0", 200, 6000).waits("w0.1", 20, 500)
		(&held{s, torture.Event{Who: "w0.1", Key: "k"}}).unnamed(100, 9000, 9005)
	}},
	{"without tokens, held by one while others of its process wait", nil, 0, func(s *script) {
		s.grant("w0.1", 1, 0, 5).unnamed(3, 9000, 9005).released(8990, 9003)
		s.waits("w0.1", 20, 500)
	}},
	{"without tokens, left behind before it was held again", []string{"residue"}, 0, func(s *script) {
		s.try("w0.1", 0, 500, "unavailable")
		s.grant("w0.1", 1, 5000, 5005).unnamed(100, 5045, 5055).released(5040, 5050)
	}},
	{"without tokens, lost too late", []string{"early loss"}, 0, func(s *script) {
		s.fault("w0", 10, 2000).grant("w0.1", 1, 0, 5).unnamed(3, 1000, 1005).lost(1010)
	}},
	{"without tokens, shared by one owner", nil, 0, func(s *script) {
		s.grantMode("w0.1", 1, 0, 5, true).unnamed(3, 190, 205).released(195, 200)
		s.grantMode("w0.1", 2, 10, 15, true).released(40, 50)
	}},
	{"without tokens, held by one after the other", nil, 0, func(s *script) {
		for i := range int64(4) {
			at := 1000 * i
			s.grant("w0.1", uint64(i)+1, at, at+5).unnamed(at+3, at+900, at+955).released(at+940, at+950)
		}
	}},
	{"no recovery", []string{"recovery"}, 0, func(s *script) {
		s.add(torture.Event{At: ms(1), Kind: torture.Final, Who: "w0.1", Err: "unavailable"})
	}},
	{"slow to close", []string{"close"}, 0, func(s *script) {
		s.on(torture.Close, 1, "w0.1").on(torture.Closed, 2600, "w0.1")
	}},
}

func TestCheck(t *testing.T) {
	for _, h := range histories {
		t.Run(h.name, func(t *testing.T) {
			s := new(script)
			h.write(s)
			v := torture.Check(s.events, torture.Terms{
				TTL: ttl, Features: lock.Fencing | lock.Leased | lock.FIFO, Breaks: h.breaks, Slack: 250 * time.Millisecond,
			})
			var rules []string
			for _, violation := range v.Violations {
				rules = append(rules, violation.Rule)
			}
			slices.Sort(rules)
			want := slices.Sorted(slices.Values(h.rules))
			if !slices.Equal(rules, want) {
				t.Errorf("violated: %q, want %q", rules, want)
				for _, violation := range v.Violations {
					t.Log(violation)
				}
			}
		})
	}
}

func TestMargins(t *testing.T) {
	s := new(script)
	s.fault("w0", 10, 2000).grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(975)
	v := torture.Check(s.events, torture.Terms{TTL: ttl, Features: lock.Fencing | lock.Leased})
	want := torture.Margin{Least: 25 * time.Millisecond, Most: 30 * time.Millisecond}
	if len(v.Margins) != 1 || v.Margins[0] != want {
		t.Errorf("margins: %v, want %v: from Lost to the last question that showed the grant, and to the first answer that did not", v.Margins, want)
	}
}

// A process that is killed may leave half a line, and costs no other its event.
func TestReadLog(t *testing.T) {
	text := `
{"at":20,"kind":"granted","who":"w0.1"}

{"at":15,"kind":"acqu
{"at":10,"kind":"acquire","who":"w0.1"}
`
	events, torn, err := torture.ReadLog(strings.NewReader(text))
	if err != nil || torn != 1 || len(events) != 2 || events[0].At != 10 || events[1].Kind != torture.Granted {
		t.Errorf("ReadLog: %v, %d torn, %v", events, torn, err)
	}
	if _, _, err := torture.ReadLog(bytes.NewReader(bytes.Repeat([]byte("x"), 2<<20))); err == nil {
		t.Error("a line without end is no error")
	}
}

// The two ways to look for two holders at once agree, on histories at random: half of
// them are nearly legal.
func TestChecksAgree(t *testing.T) {
	legal, illegal := 0, 0
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s, free := new(script), int64(10)
		for token := range uint64(6) {
			at := free + rng.Int64N(20)
			if rng.IntN(8) == 0 {
				at -= rng.Int64N(20)
			}
			end := at + rng.Int64N(30)
			g := s.grantMode("w"+string('0'+rune(rng.IntN(3)))+".1", token+1, at-rng.Int64N(10), at, rng.IntN(3) == 0)
			if rng.IntN(5) > 0 {
				g.released(end, end+rng.Int64N(20))
			} else {
				g.on(torture.Release, end)
			}
			free = max(free, end)
		}
		byRule, byPorcupine := false, false
		for _, v := range torture.Check(s.events, torture.Terms{TTL: ttl}).Violations {
			byRule = byRule || v.Rule == "exclusion" && len(v.Events) > 0
			byPorcupine = byPorcupine || v.Rule == "exclusion" && len(v.Events) == 0
		}
		if byPorcupine {
			illegal++
		} else {
			legal++
		}
		if byRule != byPorcupine && !tokensViolated(s) {
			t.Errorf("seed %d: by intervals %v, by Porcupine %v", seed, byRule, byPorcupine)
			for _, e := range s.events {
				t.Log(e)
			}
			return
		}
	}
	if legal < 500 || illegal < 500 {
		t.Errorf("%d histories are legal and %d are not: of both there should be many", legal, illegal)
	}
}

// tokensViolated says whether the order of tokens is wrong, which the model of exclusion
// minds, too.
func tokensViolated(s *script) bool {
	return slices.ContainsFunc(torture.Check(s.events, torture.Terms{TTL: ttl, Breaks: torture.Ownership}).Violations,
		func(v torture.Violation) bool { return v.Rule == "tokens" })
}
