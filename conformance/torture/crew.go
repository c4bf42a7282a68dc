package torture

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// crew are the workers of a round.
type crew struct {
	t       *testing.T
	h       *Harness
	log     *log
	file    *os.File // of the log, for processes
	workers []*Worker
	job     job // of all
	lives   uint64
	failed  []error
}

// Worker is one of those who contend for the keys: a process, or, where the backend
// lives in this one, a few goroutines. It may live several times.
type Worker struct {
	crew  *crew
	index int
	life  int
	proc  *process
	local *local
}

// local is a life in this process.
type local struct {
	stop   chan struct{}
	done   chan struct{}
	err    error
	mu     sync.Mutex
	locker lock.Locker
}

// Index is the number of the worker, as Harness.URL knows it.
func (w *Worker) Index() int { return w.index }

// Locker is that of a worker in this process, or nil before it is opened.
func (w *Worker) Locker() lock.Locker {
	w.local.mu.Lock()
	defer w.local.mu.Unlock()
	return w.local.locker
}

func (w *Worker) name() string { return fmt.Sprintf("w%d", w.index) }

func (w *Worker) who() string { return fmt.Sprintf("w%d.%d", w.index, w.life) }

// start begins a life.
func (w *Worker) start() {
	c := w.crew
	w.life++
	c.lives++
	j := c.job
	j.Who, j.Life = w.who(), c.lives
	j.Seed += c.lives * 0x9e3779b97f4a7c15 // every life makes choices of its own
	if c.h.Open != nil {
		w.startHere(j)
		return
	}
	j.URL = c.h.URL(w.index)
	p, err := startProcess(j, c.file)
	if err != nil {
		c.t.Fatal(err)
	}
	w.proc = p
}

func (w *Worker) startHere(j job) {
	l := &local{stop: make(chan struct{}), done: make(chan struct{})}
	w.local = l
	open := func(context.Context) (lock.Locker, error) {
		locker, err := w.crew.h.Open(w.index, lock.Config{TTL: j.TTL, Owner: j.Who})
		l.mu.Lock()
		defer l.mu.Unlock()
		l.locker = locker
		return locker, err
	}
	go func() {
		defer close(l.done)
		l.err = (&worker{job: j, log: w.crew.log, open: open}).run(l.stop)
	}()
}

// kill ends a process as a crash does. It is dead for all others before it is.
func (w *Worker) kill() {
	w.crew.log.add(Event{Kind: Killed, Who: w.who()})
	_ = w.proc.cmd.Process.Kill()
	<-w.proc.exited
	w.bury()
}

// bury notes the end of a process.
func (w *Worker) bury() {
	w.crew.log.add(Event{Kind: Exited, Who: w.who()})
	if err := w.proc.failure(); err != nil {
		w.crew.failed = append(w.crew.failed, fmt.Errorf("%s: %w", w.who(), err))
	}
	w.proc = nil
}

// revive starts those anew that have killed themselves.
func (c *crew) revive() {
	for _, w := range c.workers {
		if w.proc == nil {
			continue
		}
		select {
		case <-w.proc.exited:
			w.bury()
			w.start()
		default:
		}
	}
}

// alive says whether a fault can strike the worker.
func (w *Worker) alive() bool { return w.proc != nil || w.local != nil && w.Locker() != nil }

// finish has all end by themselves, and waits for it.
func (c *crew) finish(limit time.Duration) {
	for _, w := range c.workers {
		switch {
		case w.proc != nil:
			w.proc.finish()
		case w.local != nil:
			close(w.local.stop)
		}
	}
	over := time.After(limit)
	for _, w := range c.workers {
		switch {
		case w.proc != nil:
			select {
			case <-w.proc.exited:
				w.bury()
			case <-over:
				c.failed = append(c.failed, fmt.Errorf("%s did not end within %v", w.who(), limit))
				w.proc.quit()
				w.bury()
			}
		case w.local != nil:
			select {
			case <-w.local.done:
				if w.local.err != nil {
					c.failed = append(c.failed, fmt.Errorf("%s: %w", w.who(), w.local.err))
				}
			case <-over:
				c.failed = append(c.failed, fmt.Errorf("%s did not end within %v", w.who(), limit))
			}
		}
	}
}
