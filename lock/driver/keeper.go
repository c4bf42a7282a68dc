package driver

import "time"

// keep serves the alarms until the engine's life ends.
func (e *engine) keep() {
	defer close(e.stopped)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if d, ok := e.serve(); ok {
			timer.Reset(d)
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

// serve rings what is due and returns how long to sleep; false: until woken.
func (e *engine) serve() (time.Duration, bool) {
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
	d := max(0, next.Sub(now))
	if countsSuspend {
		d = min(d, e.tick())
	}
	return d, true
}

// tick bounds the keeper's sleep. Go's timers stand still while the machine is
// suspended, and the leases do not: after a suspend they are looked at soon.
func (e *engine) tick() time.Duration {
	return min(max(e.cfg.TTL/15, 100*time.Millisecond), time.Second)
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
