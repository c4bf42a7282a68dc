package zklock

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

var (
	errExpired = errors.New("the session has expired, or was closed")
	errOver    = errors.New("the session is over")

	errUnreachable = errors.New("no server answers")
)

// link is the way of one session to the servers: the dialer and the list of servers of
// one zk.Conn. It deals with what that hides, or lets hang:
//
//   - A handshake has no deadline of its own there, or one of many timeouts: here, dial and
//     handshake together have a quarter of the timeout, and at least a second at first.
//   - The timeout that the server grants is read off the handshake: one that is not what was
//     asked for ends the session.
//   - A zk.Conn opens a new session when the old one has expired, and sends on it what was
//     meant for the old one. Here each session has a zk.Conn of its own: a handshake that
//     tells of another session ends it, and from then on nothing is dialled.
//   - The names of servers are looked up each time.
type link struct {
	servers []string
	dialer  func(ctx context.Context, network, addr string) (net.Conn, error)
	timeout time.Duration                                  // of the session, as asked for
	greet   func(id int64, gen uint64, began driver.Stamp) // a connection is about to carry the session
	gone    func(cause error)                              // the session is no more, or of no use
	life    context.Context                                // ends with the session
	cut     context.CancelFunc

	mu     sync.Mutex
	next   int           // server
	id     int64         // of the session, once known
	wire   *wire         // that carries the session now, or nil
	gen    uint64        // connections that have carried it, this one included
	up     chan struct{} // closed while wire is there
	again  chan struct{} // closed when the next connection is there
	vain   int           // connections in a row on which no request was answered
	why    error         // of the last of them
	failed chan struct{} // closed while there is no connection, and every server was last tried in vain
	fails  bool          // failed is closed
}

func newLink(cfg Config, servers []string) *link {
	servers = slices.Clone(servers)
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] }) // each has its share
	l := &link{
		servers: servers, dialer: cfg.Dial, timeout: cfg.TTL,
		up: make(chan struct{}), again: make(chan struct{}), failed: make(chan struct{}),
	}
	l.life, l.cut = context.WithCancel(context.Background())
	return l
}

// ready waits until a connection carries the session, and returns its number. It does not
// wait for servers of which none answers.
func (l *link) ready(ctx context.Context) (gen uint64, err error) {
	for {
		l.mu.Lock()
		carried, gen, up, failed := l.wire != nil, l.gen, l.up, l.failed
		l.mu.Unlock()
		if carried {
			return gen, nil
		}
		select {
		case <-up:
		case <-failed:
			if _, err := l.failing(); err != nil {
				return 0, err
			}
		case <-l.life.Done():
			return 0, errOver
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// failing returns an error if the last attempts to reach each of the servers have failed,
// and else a channel that is closed when they have.
func (l *link) failing() (<-chan struct{}, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fails {
		return l.failed, fmt.Errorf("%w: %w", errUnreachable, l.why)
	}
	return l.failed, nil
}

// await waits until a connection carries the session.
func (l *link) await(ctx context.Context) error {
	for {
		l.mu.Lock()
		carried, up := l.wire != nil, l.up
		l.mu.Unlock()
		if carried {
			return nil
		}
		select {
		case <-up:
		case <-l.life.Done():
			return errOver
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// carried says whether a connection carries the session now.
func (l *link) carried() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wire != nil
}

// generation returns the number of the connection, and a channel that closes when there is
// another.
func (l *link) generation() (gen uint64, again <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.gen, l.again
}

// reset closes the connection of that number, for the next server to be tried.
func (l *link) reset(gen uint64) {
	l.mu.Lock()
	w := l.wire
	l.mu.Unlock()
	if w != nil && w.gen == gen {
		_ = w.Close()
	}
}

// Init implements zk.HostProvider.
func (l *link) Init([]string) error { return nil }

// Len implements zk.HostProvider.
func (l *link) Len() int { return len(l.servers) }

// Connected implements zk.HostProvider.
func (l *link) Connected() {}

// Next implements zk.HostProvider. The second result has a zk.Conn pause for a second and
// see whether it is closed: pauses are made here.
func (l *link) Next() (addr string, pause bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	addr = l.servers[l.next%len(l.servers)]
	l.next++
	return addr, l.life.Err() != nil
}

// dial is a zk.Dialer. Its limit is not that of package zk.
func (l *link) dial(network, addr string, _ time.Duration) (net.Conn, error) {
	if err := l.pause(); err != nil {
		return nil, err
	}
	w := &wire{link: l, addr: addr, began: driver.Now()}
	limit := l.limit()
	w.deadline = time.Now().Add(limit)
	ctx, cancel := context.WithTimeout(l.life, limit)
	defer cancel()
	var err error
	if w.Conn, err = l.dialer(ctx, network, addr); err == nil {
		err = w.SetDeadline(time.Time{})
	}
	if err != nil {
		l.inVain(addr, err)
		return nil, err
	}
	w.ahead = bufio.NewReaderSize(w.Conn, readAhead)
	w.stop = context.AfterFunc(l.life, func() { _ = w.Conn.Close() })
	return w, nil
}

// limit is how long a dial and a handshake may take together. While there is no session yet,
// nothing is lost with time.
func (l *link) limit() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.id == 0 {
		return max(l.timeout/4, time.Second)
	}
	return l.timeout / 4
}

// pause waits for a moment if no server answers.
func (l *link) pause() error {
	l.mu.Lock()
	vain := l.vain
	l.mu.Unlock()
	if vain > 0 && vain%len(l.servers) == 0 {
		timer := time.NewTimer(min(max(l.timeout/50, 20*time.Millisecond), 500*time.Millisecond))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.life.Done():
		}
	}
	return l.life.Err()
}

// inVain notes that a connection came to nothing, or was never made.
func (l *link) inVain(addr string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = fmt.Errorf("zookeeper at %s: %w", addr, err)
	l.vain++
	if l.vain >= len(l.servers) && l.wire == nil && !l.fails {
		l.fails = true
		close(l.failed)
	}
}

// answered notes the first that a server has to say on w after the handshake. One that
// closes each connection there is as good as one that cannot be reached.
func (l *link) answered(w *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w.answered = true
	l.vain, l.why = 0, nil
}

// greeted takes the server's answer to the handshake on w.
func (l *link) greeted(w *wire, id int64, timeout time.Duration) error {
	l.mu.Lock()
	known := l.id
	var err error
	switch {
	case known == 0 && id == 0:
		err = errors.New("the server refuses a session")
	case known != 0 && id != known:
		err = errExpired
	case timeout != l.timeout:
		err = driver.Permanent(fmt.Errorf("%w: the ttl is %v, and the server at %s grants a session of %v: "+
			"give a ttl between its minSessionTimeout and its maxSessionTimeout, which are 2 and 20 of its ticks if it is not told otherwise",
			lock.ErrInvalid, l.timeout, w.addr, timeout))
	}
	if err != nil {
		l.mu.Unlock()
		l.gone(err)
		return err
	}
	l.id = id
	gen := l.gen + 1
	l.mu.Unlock()
	l.greet(id, gen, w.began) // before anybody uses it

	l.mu.Lock()
	defer l.mu.Unlock()
	l.gen, w.gen, l.wire = gen, gen, w
	if l.fails {
		l.fails = false
		l.failed = make(chan struct{})
	}
	close(l.up)
	close(l.again)
	l.again = make(chan struct{})
	return nil
}

// down notes that w is closed.
func (l *link) down(w *wire) {
	l.mu.Lock()
	carried := l.wire == w
	if carried {
		l.wire = nil
		l.up = make(chan struct{})
	}
	answered, greeted := w.answered, w.gen > 0
	l.mu.Unlock()
	if answered {
		return
	}
	err := w.err
	switch {
	case err != nil:
	case greeted:
		err = errors.New("the connection was closed after the handshake")
	default:
		err = errors.New("the connection was closed before the handshake")
	}
	l.inVain(w.addr, err)
}

// wire is a connection to a server. Up to the end of the handshake it is used by one
// goroutine alone.
type wire struct {
	net.Conn
	ahead    *bufio.Reader // package zk reads the length of each packet, and then the rest: here, both come at once
	link     *link
	addr     string
	began    driver.Stamp // before it was dialled
	deadline time.Time    // of the handshake
	gen      uint64       // of the link, once the handshake is done
	greeting []byte       // what has been read of the server's answer
	done     bool         // all of it has been read
	answered bool         // something has been read since; guarded by link.mu, but for Read, which sets it
	err      error        // what ended the handshake
	stop     func() bool
	closed   sync.Once
}

// greetingLen are the bytes of the answer that tell of the session: length, version of the
// protocol, timeout in milliseconds, and ID.
const greetingLen = 4 + 4 + 4 + 8

// maxGreeting is more than any answer has: who sends more speaks something else.
const maxGreeting = 1024

// readAhead is more than most packets have.
const readAhead = 4 << 10

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.ahead.Read(b)
	if w.done {
		switch {
		case err != nil:
			_ = w.Close() // before package zk stops sending: what is asked from now on waits for the next connection
		case !w.answered:
			w.link.answered(w)
		}
		return n, err
	}
	if err == nil {
		err = w.read(b[:n])
	}
	if err != nil {
		n = 0 // else package zk, which has what it wanted, would not look at the error
		w.failed(err)
	}
	return n, err
}

// failed notes what ended the handshake.
func (w *wire) failed(err error) {
	if w.err == nil {
		w.err = err
	}
}

// read takes a piece of the answer to the handshake.
func (w *wire) read(piece []byte) error {
	had := len(w.greeting)
	w.greeting = append(w.greeting, piece...)
	if had < 4 && len(w.greeting) >= 4 {
		n := binary.BigEndian.Uint32(w.greeting)
		if n < greetingLen-4 || n > maxGreeting {
			return fmt.Errorf("the answer %q to the handshake is none of ZooKeeper's", w.greeting)
		}
	}
	if len(w.greeting) < 4 || len(w.greeting) < 4+int(binary.BigEndian.Uint32(w.greeting)) {
		return nil
	}
	w.done = true
	timeout := time.Duration(int32(binary.BigEndian.Uint32(w.greeting[8:]))) * time.Millisecond //nolint:gosec // it has a sign
	id := int64(binary.BigEndian.Uint64(w.greeting[12:]))                                       //nolint:gosec // it has a sign
	w.greeting = nil
	if err := w.Conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	return w.link.greeted(w, id, timeout)
}

// Write does not tell, after the handshake, that it has failed: it closes the connection,
// which Read tells. Package zk answers a request that it could not write twice, once for
// this and once for the connection, and of the credentials, which it sends again on each
// connection, it takes one answer: it would hang, and its session be lost.
func (w *wire) Write(b []byte) (int, error) {
	n, err := w.Conn.Write(b)
	switch {
	case err == nil:
	case w.done:
		_ = w.Close()
		return len(b), nil
	default:
		w.failed(err)
	}
	return n, err
}

// SetDeadline and those for one direction do not go beyond that of the handshake, before
// its end.
func (w *wire) SetDeadline(t time.Time) error { return w.Conn.SetDeadline(w.clamp(t)) }

// SetReadDeadline and SetWriteDeadline leave an old deadline alone, after the handshake,
// instead of taking it back: package zk sets a new one before it reads or writes again.
func (w *wire) SetReadDeadline(t time.Time) error {
	if w.done && t.IsZero() {
		return nil
	}
	return w.Conn.SetReadDeadline(w.clamp(t))
}

// SetWriteDeadline is as SetReadDeadline.
func (w *wire) SetWriteDeadline(t time.Time) error {
	if w.done && t.IsZero() {
		return nil
	}
	return w.Conn.SetWriteDeadline(w.clamp(t))
}

func (w *wire) clamp(t time.Time) time.Time {
	if !w.done && (t.IsZero() || t.After(w.deadline)) {
		return w.deadline
	}
	return t
}

func (w *wire) Close() error {
	err := net.ErrClosed
	w.closed.Do(func() {
		w.stop()
		err = w.Conn.Close()
		w.link.down(w)
	})
	return err
}
