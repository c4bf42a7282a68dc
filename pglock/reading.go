package pglock

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// reading is who reads what the server sends, one at a time.
//
// A caller that waits for an answer reads it itself, if nobody else is reading: to be
// handed it by another goroutine takes about a tenth of the time that a server nearby takes
// to answer. It gives all others that come before it to those who wait for them.
//
// While no caller reads, a goroutine of the session's does: so the end of the connection,
// or the server's last word, is heard although nothing is asked. Nobody interrupts it in
// that; but when it has read what was to come, it rests a moment, in which callers find the
// reading free.
type reading struct {
	sync.Mutex
	apart  bool          // no caller reads: the connection knows no deadlines, and would keep them
	wanted chan struct{} // tells the goroutine that somebody waits for an answer, and none reads

	// Guarded by the mutex.
	until time.Time // the socket's deadline
	part  answer    // as far as it has come
	fault error     // that has ended the connection
}

const (
	rest = 5 * time.Millisecond  // of the goroutine, after an answer
	look = 50 * time.Millisecond // at the context of a caller who reads
)

// watch reads while no caller does, until the connection ends.
func (s *session) watch() {
	rested := time.NewTimer(0)
	defer rested.Stop()
	for s.dead() == nil {
		select {
		case <-s.reading.wanted:
		case <-rested.C:
		}
		s.reading.Lock()
		s.readUntil(time.Time{})
		err := s.receive()
		for err == nil && s.underWay() {
			err = s.receive()
		}
		s.handOn(err)
		if s.reading.apart {
			rested.Reset(0)
		} else {
			rested.Reset(rest)
		}
	}
}

// lead has the caller who waits for c read, if nobody does. It returns when c is answered,
// ctx is over, or the connection ends.
func (s *session) lead(ctx context.Context, c *call) {
	if s.reading.apart || !s.reading.TryLock() {
		return
	}
	var err error
	for err == nil && !c.finished() && s.readFor(ctx) {
		if err = s.receive(); errors.Is(err, os.ErrDeadlineExceeded) {
			err = nil
		}
	}
	s.handOn(err)
}

// handOn ends the reading of who reads; err is what has ended the connection. The session's
// goroutine goes on if an answer is to come: who waits for that found another reading.
func (s *session) handOn(err error) {
	s.reading.Unlock()
	if err != nil {
		s.die(err)
		return
	}
	if !s.underWay() {
		return
	}
	select {
	case s.reading.wanted <- struct{}{}:
	default:
	}
}

// underWay says whether an answer is to come.
func (s *session) underWay() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls) > 0
}

// readFor has the reading given up at the end of ctx, or when it is to be looked at again.
// false: it is over. A deadline for each answer would cost a timer.
func (s *session) readFor(ctx context.Context) bool {
	now := time.Now()
	next := now.Add(look)
	if end, ok := ctx.Deadline(); ok && end.Before(next) {
		next = end
	}
	if ctx.Err() != nil || !now.Before(next) {
		return false
	}
	if until := s.reading.until; until.After(next) || until.Sub(now) < look/2 {
		s.readUntil(next)
	}
	return true
}

// readUntil sets the moment at which reading is given up; zero: never.
func (s *session) readUntil(t time.Time) {
	s.reading.until = t
	_ = s.conn.SetReadDeadline(t) // fails if the connection is closed; then reading does, too
}

// receive reads one answer to its end, or goes on with the one that was begun.
func (s *session) receive() error {
	a := &s.reading.part
	for s.reading.fault == nil {
		m, err := s.front.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if err != nil {
			s.reading.fault = err
			break
		}
		switch m := m.(type) {
		case *pgproto3.DataRow:
			a.row(m.Values, s.wantsText())
		case *pgproto3.FunctionCallResponse:
			a.row([][]byte{m.Result}, false)
		case *pgproto3.ErrorResponse:
			err := pgconn.ErrorResponseToPgError(m)
			if err.SeverityUnlocalized != "ERROR" {
				s.reading.fault = err // the server closes the connection behind it
				break
			}
			a.err = err
		case *pgproto3.ReadyForQuery: // the end of an answer
			s.answered(*a)
			*a = answer{}
			return nil
		}
	}
	return s.reading.fault
}

// wantsText says whether the call whose answer is being read wants text.
func (s *session) wantsText() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.calls) > 0 && s.calls[0].text
}

// answered gives an answer to the call that has waited longest. When the session has died
// meanwhile, the call has its answer.
func (s *session) answered(a answer) {
	s.mu.Lock()
	if len(s.calls) == 0 {
		s.mu.Unlock()
		return
	}
	c := s.calls[0]
	s.calls[0] = nil
	s.calls = s.calls[1:]
	c.answer = a
	s.mu.Unlock()
	c.finish()
}

// row takes a row, whose bytes are good until the next message is read.
func (a *answer) row(values [][]byte, text bool) {
	switch {
	case text:
		row := make([]string, len(values))
		for i, v := range values {
			row[i] = string(v)
		}
		a.rows = append(a.rows, row)
	case len(values) == 1 && len(values[0]) == 8:
		a.value, a.known = int64(binary.BigEndian.Uint64(values[0])), true
	case len(values) == 1 && len(values[0]) == 1: // a boolean
		a.value, a.known = int64(values[0][0]), true
	}
}
