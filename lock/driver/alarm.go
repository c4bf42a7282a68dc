package driver

import "container/heap"

// alarm is a moment at which something in the engine wants to be woken. What it
// wakes embeds it. All alarms of an engine are in one heap and served by one
// goroutine, the keeper: what is held costs no timer and no goroutine of its own.
type alarm struct {
	at    Stamp
	index int // place in the heap, from 1; 0: not set
}

// ringer is what an alarm wakes. ring runs with the engine locked, and sets the
// next alarm if it wants one.
type ringer interface {
	bell() *alarm
	ring(e *engine, now Stamp)
}

func (a *alarm) bell() *alarm { return a }

// alarms is the heap. The moments are kept in it, beside what they wake: comparing
// them must not fetch a hundred thousand leases from memory.
type alarms struct{ heap []armed }

type armed struct {
	at Stamp
	r  ringer
}

func (as *alarms) Len() int           { return len(as.heap) }
func (as *alarms) Less(i, j int) bool { return as.heap[i].at < as.heap[j].at }

func (as *alarms) Swap(i, j int) {
	as.heap[i], as.heap[j] = as.heap[j], as.heap[i]
	as.heap[i].r.bell().index = i + 1
	as.heap[j].r.bell().index = j + 1
}

// Push implements heap.Interface.
func (as *alarms) Push(x any) {
	as.heap = append(as.heap, x.(armed))
	as.heap[len(as.heap)-1].r.bell().index = len(as.heap)
}

// Pop implements heap.Interface.
func (as *alarms) Pop() any {
	last := len(as.heap) - 1
	r := as.heap[last].r
	as.heap[last] = armed{}
	as.heap = as.heap[:last]
	r.bell().index = 0
	return r
}

// set arms r for at, in place of what it was armed for.
func (as *alarms) set(r ringer, at Stamp) {
	a := r.bell()
	a.at = at
	if a.index == 0 {
		heap.Push(as, armed{at, r})
		return
	}
	as.heap[a.index-1].at = at
	heap.Fix(as, a.index-1)
}

// unset disarms r.
func (as *alarms) unset(r ringer) {
	if a := r.bell(); a.index != 0 {
		heap.Remove(as, a.index-1)
	}
}

// next returns the earliest alarm and its moment.
func (as *alarms) next() (ringer, Stamp, bool) {
	if len(as.heap) == 0 {
		return nil, 0, false
	}
	return as.heap[0].r, as.heap[0].at, true
}

// pop disarms and returns the earliest alarm if it is due by now.
func (as *alarms) pop(now Stamp) ringer {
	if _, at, ok := as.next(); !ok || at > now {
		return nil
	}
	return heap.Pop(as).(ringer)
}
