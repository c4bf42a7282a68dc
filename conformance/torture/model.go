package torture

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/anishathalye/porcupine"
)

// input is an operation of the models.
type input struct {
	op     string // "acquire", "end" or "write"
	key    string
	token  uint64
	shared bool
	ok     bool   // of a write: accepted
	fence  uint64 // of a write: the greatest token accepted, afterwards
}

// state is that of one key.
type state struct {
	writer  uint64 // the token that holds exclusively, or 0
	readers int
	last    uint64 // the greatest token that was granted
	fence   uint64 // the greatest that the resource accepted
}

// exclusion is the lock: it is granted while nobody relies on it, with growing tokens.
func exclusion(s state, i input) (bool, state) {
	switch {
	case i.op == "end" && i.shared:
		s.readers--
		return s.readers >= 0, s
	case i.op == "end":
		ok := s.writer == i.token
		s.writer = 0
		return ok, s
	}
	ok := s.writer == 0 && (i.shared || s.readers == 0) && i.token > s.last
	s.last = i.token
	if i.shared {
		s.readers++
	} else {
		s.writer = i.token
	}
	return ok, s
}

// tokens is the numbering of grants: whoever holds what.
func tokens(s state, i input) (bool, state) {
	ok := i.token > s.last
	s.last = i.token
	return ok, s
}

// fence is the resource: it refuses a token that is smaller than one it has accepted, and
// no other.
func fence(s state, i input) (bool, state) {
	ok := i.ok == (i.token >= s.fence)
	if i.ok {
		s.fence = max(s.fence, i.token)
	}
	return ok && i.fence == s.fence, s
}

// modelOf makes a model of one key's steps.
func modelOf(step func(state, input) (bool, state)) porcupine.Model {
	return porcupine.Model{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			parts := make(map[string][]porcupine.Operation)
			for _, o := range history {
				key := o.Input.(input).key
				parts[key] = append(parts[key], o)
			}
			var all [][]porcupine.Operation
			for _, part := range parts {
				all = append(all, part)
			}
			slices.SortFunc(all, func(a, b []porcupine.Operation) int {
				return cmp.Compare(a[0].Input.(input).key, b[0].Input.(input).key)
			})
			return all
		},
		Init: func() any { return state{} },
		Step: func(s, i, _ any) (bool, any) {
			ok, next := step(s.(state), i.(input))
			return ok, next
		},
		DescribeOperation: func(i, _ any) string { return i.(input).String() },
		DescribeState: func(s any) string {
			v := s.(state)
			return fmt.Sprintf("writer %d, readers %d, last %d, fence %d", v.writer, v.readers, v.last, v.fence)
		},
	}
}

func (i input) String() string {
	switch {
	case i.op != "write":
		mode := ""
		if i.shared {
			mode = "shared "
		}
		return fmt.Sprintf("%s %s%s %d", i.op, mode, i.key, i.token)
	case i.ok:
		return fmt.Sprintf("write %s %d", i.key, i.token)
	}
	return fmt.Sprintf("write %s %d refused: %d", i.key, i.token, i.fence)
}

// operations are the grants as the models want them: an acquisition that failed, or whose
// outcome nobody knows, is not among them, for it may or may not have held for a while,
// which only makes others fail or wait.
func (h *history) operations(withEnds bool) []porcupine.Operation {
	var ops []porcupine.Operation
	clients := h.clients()
	for key, grants := range h.byKey() {
		// An end that nobody saw is at the latest before the return of the next grant
		// that it makes room for: in the order of tokens nothing else is legal. That keeps
		// the search short, and rules out nothing.
		nextAny, nextExclusive := int64(never), int64(never)
		for _, g := range slices.Backward(grants) {
			in := input{op: "acquire", key: key, token: g.Token, shared: g.Shared}
			ops = append(ops, porcupine.Operation{ClientId: clients[g.Who], Input: in, Call: g.called, Return: g.At})
			if withEnds && g.end < never {
				in.op = "end"
				latest := nextAny
				if g.Shared {
					latest = nextExclusive
				}
				if g.seen != nil {
					latest = min(latest, g.seen.gone)
				}
				if g.released != nil && g.released.Err == "" {
					latest = min(latest, g.released.At)
				}
				ops = append(ops, porcupine.Operation{
					ClientId: clients[g.Who], Input: in, Call: g.end, Return: max(latest, g.end),
				})
			}
			nextAny = min(nextAny, g.At)
			if !g.Shared {
				nextExclusive = min(nextExclusive, g.At)
			}
		}
	}
	return ops
}

// writes are the writes to the resource. One that never arrived is not among them; one
// whose answer was not read was decided when the resource says so.
func (h *history) writes() []porcupine.Operation {
	var ops []porcupine.Operation
	clients := h.clients()
	for _, g := range h.grants {
		for _, w := range g.writes {
			answer := w.wrote
			if answer == nil {
				answer = w.decided
			}
			if answer == nil {
				continue
			}
			in := input{op: "write", key: g.Key, token: g.Token, ok: answer.OK, fence: answer.Fence}
			ops = append(ops, porcupine.Operation{ClientId: clients[g.Who], Input: in, Call: w.At, Return: answer.At})
		}
	}
	return ops
}

// clients numbers the lives, for pictures.
func (h *history) clients() map[string]int {
	m := make(map[string]int)
	for _, g := range h.grants {
		if _, ok := m[g.Who]; !ok {
			m[g.Who] = len(m)
		}
	}
	return m
}
