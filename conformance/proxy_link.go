package conformance

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	chunkSize = 32 << 10 // the most that is read at once
	maxHeld   = 1 << 20  // the bytes of one pipe that wait before it stops reading
)

// link is a client's connection and the one to the server that belongs to it.
// All of its state is guarded by the proxy's mutex.
type link struct {
	proxy  *Proxy
	client *net.TCPConn
	server *net.TCPConn // nil until the server was dialled
	pipes  [2]pipe      // by direction
	caught *loss        // the loss that a request of this link has met
	holed  bool         // something was swallowed: Heal resets the link
	ended  bool
}

// pipe is one direction of a link. Its reader takes what src sends, its writer
// passes it on to dst; between them is a queue. Only the owner of busy passes
// anything, and the reader does so itself when nothing is queued and nothing holds
// it back, which spares a good network the change of goroutine. So what was taken
// first passes first, and each thing passes a gate that is open at that moment.
type pipe struct {
	link *link
	dir  direction
	src  *net.TCPConn
	dst  *net.TCPConn // nil until the server was dialled

	wake  sync.Cond // the queue, busy, a fault or the link's end has changed
	queue []item
	held  int // bytes in queue

	busy        bool               // something is passing, with the mutex given up
	interrupted bool               // it was told to come back
	cancel      context.CancelFunc // stops it, if it is dialling
	finished    bool               // the end of the stream has passed
	broken      bool               // dst is dead: what comes is thrown away
}

// item is what travels through a pipe.
type item struct {
	kind kind
	at   time.Time // when the proxy took it
	data []byte
	loss *loss // data: whose request this is; strike: what strikes
}

type kind int

const (
	connect kind = iota // the first of a client's requests: dial the server
	data
	finish // src has closed its side
	abort  // src is dead
	strike // in place of data: reset the link
)

// link starts a link for a client. The server is dialled by way of the queue, so
// that a partition keeps new connections, too, from the server.
func (p *Proxy) link(client *net.TCPConn) {
	l := &link{proxy: p, client: client}
	l.pipes[requests] = pipe{link: l, dir: requests, src: client}
	l.pipes[replies] = pipe{link: l, dir: replies, dst: client}
	p.links[l] = struct{}{}
	for i := range l.pipes {
		l.pipes[i].wake.L = &p.mu
		p.running.Go(l.pipes[i].write)
	}
	asks := &l.pipes[requests]
	asks.push(item{kind: connect, at: time.Now()})
	p.running.Go(asks.read)
}

// end closes both connections. Close returns only when no goroutine is in a call
// on the connection any more, and those need no mutex to return: so it may be held
// here, and the reset is out when end returns.
func (l *link) end(abruptly bool) {
	if l.ended {
		return
	}
	l.ended = true
	delete(l.proxy.links, l)
	for i := range l.pipes {
		q := &l.pipes[i]
		q.wake.Broadcast()
		if q.cancel != nil {
			q.cancel()
		}
	}
	for _, conn := range []*net.TCPConn{l.client, l.server} {
		switch {
		case conn == nil:
		case abruptly:
			reset(conn)
		default:
			conn.Close()
		}
	}
}

// read is the reader. It ends with src.
func (q *pipe) read() {
	l, p := q.link, q.link.proxy
	buf := make([]byte, chunkSize)
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		for !l.ended && q.held >= maxHeld && p.gates[q.dir] != dropping {
			q.wake.Wait()
		}
		if l.ended {
			return
		}
		p.mu.Unlock()
		n, err := q.src.Read(buf)
		now := time.Now()
		p.mu.Lock()
		if n > 0 {
			q.take(item{kind: data, at: now, data: buf[:n]})
		}
		switch {
		case errors.Is(err, io.EOF):
			q.take(item{kind: finish, at: now})
			return
		case err != nil:
			q.take(item{kind: abort, at: now})
			return
		}
	}
}

// write is the writer. It ends with the link.
func (q *pipe) write() {
	l, p := q.link, q.link.proxy
	p.mu.Lock()
	defer p.mu.Unlock()
	for !l.ended {
		switch {
		case len(q.queue) == 0 || q.busy || p.gates[q.dir] != open:
			q.wake.Wait()
		case q.early(q.queue[0]) > 0:
			q.sleep(q.early(q.queue[0]))
		default:
			it := q.queue[0]
			q.queue = q.queue[1:]
			q.held -= len(it.data)
			if rest, left := q.pass(it); left {
				q.queue = append([]item{rest}, q.queue...)
				q.held += len(rest.data)
			}
			q.wake.Broadcast() // there may be room
		}
	}
}

// take is where what src sent meets the faults. It may keep no part of it.data.
func (q *pipe) take(it item) {
	l, p := q.link, q.link.proxy
	gate := p.gates[q.dir]
	switch {
	case l.ended || q.broken:
		return
	case gate == dropping,
		gate == stalled && q.dst == nil && it.kind != data: // given up before the server knew of it
		l.holed = true
		return
	}
	if it.kind == data {
		it = l.meet(q.dir, it)
	}
	if gate == open && len(q.queue) == 0 && !q.busy && q.early(it) <= 0 {
		var left bool
		if it, left = q.pass(it); !left {
			return
		}
	}
	it.data = bytes.Clone(it.data)
	q.push(it)
}

func (q *pipe) push(it item) {
	q.queue = append(q.queue, it)
	q.held += len(it.data)
	q.wake.Broadcast()
}

// meet lets data meet an armed loss, if it is a request, or the one that its
// request has met, if it is a reply.
func (l *link) meet(dir direction, it item) item {
	p := l.proxy
	if dir == replies {
		if l.caught != nil && l.caught.asked {
			return item{kind: strike, at: it.at, loss: l.caught}
		}
		return it
	}
	if l.caught != nil {
		return it // it ends this link, and one loss is enough for that
	}
	for i, o := range p.armed {
		if o.match != nil && !o.match(it.data) {
			continue
		}
		p.armed = append(p.armed[:i:i], p.armed[i+1:]...)
		l.caught = o
		if o.request {
			return item{kind: strike, at: it.at, loss: o}
		}
		it.loss = o
		return it
	}
	return it
}

// early says how long it must still wait for Delay.
func (q *pipe) early(it item) time.Duration {
	d := q.link.proxy.delays[q.dir]
	if d <= 0 {
		return 0
	}
	return time.Until(it.at.Add(d))
}

// sleep waits for a change, or for d.
func (q *pipe) sleep(d time.Duration) {
	p := q.link.proxy
	p.running.Add(1)
	alarm := time.AfterFunc(d, func() {
		defer p.running.Done()
		p.mu.Lock()
		defer p.mu.Unlock()
		q.wake.Broadcast()
	})
	q.wake.Wait()
	if alarm.Stop() {
		p.running.Done()
	}
}

// pass hands it to dst, and returns what is left if it was interrupted.
func (q *pipe) pass(it item) (rest item, left bool) {
	l := q.link
	switch it.kind {
	case connect:
		return it, !q.dial()
	case data:
		return q.send(it)
	case finish:
		_ = q.dst.CloseWrite() // if dst is dead, its reader will say so
		q.finished = true
		if l.opposite(q).finished {
			l.end(false)
		}
	case abort:
		l.end(true)
	case strike:
		l.end(true)
		close(it.loss.struck)
	}
	return item{}, false
}

func (q *pipe) send(it item) (rest item, left bool) {
	if it.loss != nil {
		it.loss.asked = true // before, for the answer may be faster than we are after
	}
	p := q.link.proxy
	q.busy = true
	p.mu.Unlock()
	n, err := q.dst.Write(it.data)
	p.mu.Lock()
	interrupted := q.back()
	switch {
	case err == nil:
		return item{}, false
	case interrupted && errors.Is(err, os.ErrDeadlineExceeded):
		it.data = it.data[n:]
		return it, true
	default:
		q.fail()
		return item{}, false
	}
}

// dial connects the link to the server; false: it was interrupted.
func (q *pipe) dial() bool {
	l, p := q.link, q.link.proxy
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	q.busy, q.cancel = true, cancel
	p.mu.Unlock()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", p.target)
	p.mu.Lock()
	q.cancel = nil
	interrupted := q.back()
	switch {
	case err == nil && l.ended:
		reset(conn.(*net.TCPConn))
	case err == nil:
		l.server = conn.(*net.TCPConn)
		q.dst = l.server
		answers := l.opposite(q)
		answers.src = l.server
		p.running.Go(answers.read)
	case interrupted:
		return false
	default:
		q.fail()
	}
	return true
}

// interrupt makes what is passing come back soon.
func (q *pipe) interrupt() {
	switch {
	case !q.busy:
		return
	case q.cancel != nil:
		q.cancel()
	default:
		q.dst.SetWriteDeadline(time.Unix(1, 0))
	}
	q.interrupted = true
}

// back ends busy, and says whether there was an interrupt.
func (q *pipe) back() bool {
	interrupted := q.interrupted
	q.busy, q.interrupted = false, false
	if interrupted && q.dst != nil {
		q.dst.SetWriteDeadline(time.Time{})
	}
	if len(q.queue) > 0 { // else the writer would wake for nothing, once a chunk
		q.wake.Broadcast()
	}
	q.link.proxy.moved.Broadcast()
	return interrupted
}

// fail: dst is dead. That is news for src, and travels as such.
func (q *pipe) fail() {
	q.broken, q.queue, q.held = true, nil, 0
	q.link.opposite(q).take(item{kind: abort, at: time.Now()})
}

func (l *link) opposite(q *pipe) *pipe { return &l.pipes[1-q.dir] }
