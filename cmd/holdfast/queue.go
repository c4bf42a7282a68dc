//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"
)

const (
	queueLines = 1024
	vitalLines = 16 // for which there is room besides
	flushTime  = time.Second
)

// queue writes lines without making whoever has them wait: neither the renewal of a lock,
// nor that a signal is obeyed, may depend on somebody reading stderr. Lines that find no
// room are lost and counted, and the count is told when there is room again.
type queue struct {
	w       io.Writer
	lines   chan []byte
	done    chan struct{} // closed when all is written
	sayLost func(n int)

	mu     sync.Mutex
	closed bool
	lost   int
	vital  bool // one of the lines is worth waiting for
}

func newQueue(w io.Writer, sayLost func(n int)) *queue {
	q := &queue{w: w, lines: make(chan []byte, queueLines+vitalLines), done: make(chan struct{}), sayLost: sayLost}
	go q.drain()
	return q
}

// Write takes one line. It never fails.
func (q *queue) Write(line []byte) (int, error) { return q.add(line, false) }

// message is a writer for lines without which the command must not end.
type message struct{ *queue }

func (m message) Write(line []byte) (int, error) { return m.add(line, true) }

func (q *queue) add(line []byte, vital bool) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	room := queueLines
	if vital {
		room += vitalLines
		q.vital = true
	}
	switch {
	case q.closed:
	case len(q.lines) < room: // nobody else puts lines there meanwhile
		q.lines <- bytes.Clone(line)
	default:
		q.lost++
	}
	return len(line), nil
}

func (q *queue) drain() {
	defer close(q.done)
	for line := range q.lines {
		_, _ = q.w.Write(line)
		if n := q.takeLost(); n > 0 {
			q.sayLost(n)
		}
	}
}

func (q *queue) takeLost() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := q.lost
	q.lost = 0
	return n
}

// close waits until all lines are written. Where nobody reads them it waits for messages
// as any program would, but not for long after a signal to end, and so for events.
func (q *queue) close(hurry <-chan os.Signal) {
	q.mu.Lock()
	if !q.closed {
		q.closed = true
		close(q.lines)
	}
	vital := q.vital
	q.mu.Unlock()
	if vital {
		select {
		case <-q.done:
		case <-hurry:
		}
	}
	select {
	case <-q.done:
	case <-time.After(flushTime):
	}
}
