package driver

import "time"

// keep serves the alarms until the engine's life ends.
func (e *engine) keep() {
	defer close(e.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next, ok := e.serve(); ok {
			timer.Reset(max(0, next.Sub(Now()))) // from now: an observer may have taken its time
		} else {
			timer.Stop()
		}
		select {
		case <-timer.C:
		case <-e.wake:
		case <-e.life.Done():
			return
		}
	}
}

// serve rings what is due and returns when to look again; false: there is nothing to look
// for.
func (e *engine) serve() (Stamp, bool) {
	e.mu.Lock()
	defer e.unlock()
	e.planned, e.sleeping = never, true // what is set meanwhile need not wake anybody
	now := Now()
	for r := e.alarms.pop(now); r != nil; r = e.alarms.pop(now) {
		r.ring(e, now)
	}
	e.fillBatch(now)
	e.startRenewals()

	_, next, ok := e.alarms.next()
	if !ok {
		e.sleeping = false
		return 0, false
	}
	e.planned, e.sleeping = atTick(next, now), true
	return e.planned, true
}

// tick bounds the keeper's sleep. Go's timers stand still while the machine is
// suspended, and the leases do not: after a suspend they are looked at soon. And what is set
// for later than the next tick, as most is, need not wake the keeper.
const tick = 100 * time.Millisecond

func atTick(next, now Stamp) Stamp {
	if countsSuspend && !inBubble(time.Now()) {
		return min(next, now.Add(tick))
	}
	return next
}

// set arms r, and wakes the keeper if it would sleep too long.
func (e *engine) set(r ringer, at Stamp) {
	e.alarms.set(r, at)
	if e.sleeping && at >= e.planned {
		return
	}
	e.planned, e.sleeping = at, true
	select {
	case e.wake <- struct{}{}:
	default:
	}
}
