package driver

import "time"

// keep serves the alarms until the engine's life ends.
func (e *engine) keep() {
	defer close(e.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if next, ok := e.serve(); ok {
			timer.Reset(untilAlarm(next)) // from now: an observer may have taken its time
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

// serve rings what is due and returns when the next alarm is; false: there is none.
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
	e.planned, e.sleeping = next, true
	return next, true
}

// tick bounds the keeper's sleep. Go's timers stand still while the machine is
// suspended, and the leases do not: after a suspend they are looked at soon.
const tick = 100 * time.Millisecond

func untilAlarm(next Stamp) time.Duration {
	d := max(0, next.Sub(Now()))
	if countsSuspend && !inBubble(time.Now()) {
		return min(d, tick)
	}
	return d
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
