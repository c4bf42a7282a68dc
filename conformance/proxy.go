package conformance

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Proxy is a TCP proxy that can behave as a bad network does. It stands between
// a client and a server of any protocol: the client is told [Proxy.Addr] instead
// of the server's address, and the test injects faults.
//
// A fault holds for the connections there are and for those still to come, until
// [Proxy.Heal]. Faults add up: after StallReplies and Refuse, both hold. Where two
// say different things of one direction, the later one counts for it.
//
// "Requests" are the bytes from client to server, "replies" those from server to
// client. Closing is part of the stream: the end of a connection, or its reset,
// travels behind the bytes sent before it and meets the same faults. When a method
// returns, its fault is in force: no byte, and no new connection, that the proxy
// has not yet handed on passes it any more. What the kernel already holds for a
// peer that does not read, the peer will still find.
//
// The client's handshake is answered by the kernel, whatever the fault. So a
// client that connects in a partition sees a connection on which nothing moves,
// where a real one would let it wait in connect. One that is refused sees
// "connection reset by peer" from its connect or from its first read or write.
//
// All methods may be called from many goroutines, and do nothing after Close.
type Proxy struct {
	target   string
	listener *net.TCPListener
	running  sync.WaitGroup // every goroutine and timer of the proxy

	mu sync.Mutex // guards what follows, and all state of the links
	faults
	links  map[*link]struct{}
	closed bool

	moved   sync.Cond // passing ended somewhere, or one of the next three changed
	marking bool      // catchUp is dialling
	marker  string    // the client address of catchUp's connection, until it was accepted
}

// faults is what is in force. The zero value is a good network.
type faults struct {
	gates    [2]gate
	delays   [2]time.Duration
	refusing bool
	armed    []*loss
}

// direction is an index: what differs between requests and replies is an array.
type direction int

const (
	requests direction = iota
	replies
)

type gate int

const (
	open     gate = iota
	stalled       // what arrives waits
	dropping      // what arrives is swallowed; what waits already waits on
)

// loss is a one-shot fault that waits for its request.
type loss struct {
	request bool                      // the request is lost, not its reply
	match   func(request []byte) bool // nil: any
	asked   bool                      // the request is being handed to the server
	struck  chan struct{}
}

// NewProxy starts a proxy on a free port of 127.0.0.1 for the server at target,
// a "host:port". The server is dialled once for each client that connects; a
// client whose server cannot be reached is reset.
func NewProxy(target string) (*Proxy, error) {
	if _, _, err := net.SplitHostPort(target); err != nil {
		return nil, fmt.Errorf("holdfast: proxy target: %w", err)
	}
	listener, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, fmt.Errorf("holdfast: proxy: %w", err)
	}
	p := &Proxy{target: target, listener: listener, links: make(map[*link]struct{})}
	p.moved.L = &p.mu
	p.running.Go(p.serve)
	return p, nil
}

// Addr returns the "host:port" that clients connect to. It stays the same under
// every fault.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close resets every connection, frees the port, and returns when all goroutines
// of the proxy have ended, whatever fault is in force. A second Close returns nil.
func (p *Proxy) Close() error {
	p.mu.Lock()
	first := !p.closed
	p.closed = true
	p.resetAll()
	p.moved.Broadcast()
	p.mu.Unlock()

	var err error
	if first {
		err = p.listener.Close()
	}
	p.running.Wait()
	return err
}

// Heal ends all faults. What was stalled or delayed is delivered at once and in
// order, from both sides; connections that Drop took bytes from are reset. A
// LoseReply or LoseRequest that has not met its request is called off; one that
// has runs its course.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refusing {
		p.catchUp() // who came while we refused is still refused
	}
	p.faults = faults{}
	for l := range p.links {
		if l.holed {
			l.end(true)
		}
	}
	p.settle()
}

// Stall is a partition that will heal: nothing passes in either direction, and
// nothing is closed. A client sees its connection stay open and mute, writes
// succeed until the buffers are full (1 MiB for each direction of a connection,
// and the kernel's), and new connections are as mute. The server sees neither
// them nor the end of those that the client closes. After Heal all that was sent
// meanwhile arrives, as TCP sends again what was lost. Only a connection that was
// made in the partition, and ended by its client before Heal, never reaches the
// server: in a real one it would not have got beyond its first packet.
func (p *Proxy) Stall() {
	p.set(func(f *faults) { f.gates = [2]gate{stalled, stalled} })
}

// StallRequests is a one-way partition: as Stall, but what the server sends, of
// its own accord or because of what it was asked before, still arrives.
func (p *Proxy) StallRequests() {
	p.set(func(f *faults) { f.gates[requests] = stalled })
}

// StallReplies is the other one-way partition: requests arrive and are carried
// out, on new connections too, and no answer comes before Heal.
//
// With Cut it loses the answer to a request of a protocol with several requests
// under way, where LoseReply might take one answer for another: StallReplies,
// send the request, look at the server by another way until it is carried out,
// Cut, Heal.
func (p *Proxy) StallReplies() {
	p.set(func(f *faults) { f.gates[replies] = stalled })
}

// Drop is a partition in which connections die unnoticed: what either side sends
// is swallowed, and will never be delivered. While it holds, a client cannot tell
// it from Stall. After Heal the connections on which something was lost are reset,
// on both sides, for a stream with a hole cannot go on; those that were idle live.
//
// Bytes are lost when the proxy reads them, at once on an idle machine: what is
// sent just before Heal may pass as if it had been sent just after.
func (p *Proxy) Drop() {
	p.set(func(f *faults) { f.gates = [2]gate{dropping, dropping} })
}

// Refuse turns new clients away: their connections are reset as soon as they are
// made, and the server does not see them. Connections made before it live on.
func (p *Proxy) Refuse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.catchUp() // who came before us is not refused
	p.refusing = true
}

// Cut resets every connection there is, once and on both sides: client and server
// see "connection reset by peer". New connections work. Bytes that were stalled or
// delayed are lost with their connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.catchUp() // who came before us is cut
	p.resetAll()
}

// Down is a server that is gone: every connection is reset, and new clients are
// turned away as by Refuse.
func (p *Proxy) Down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = true
	p.resetAll()
}

// Delay is distance: each chunk of bytes arrives that much later than it was sent.
// It adds latency and takes no throughput, up to 1 MiB under way: a client that
// sends ten requests without waiting has all ten answers after one delay each way.
// Order is kept. A new Delay replaces the one before, for what is under way too.
func (p *Proxy) Delay(requests, replies time.Duration) {
	p.set(func(f *faults) { f.delays = [2]time.Duration{requests, replies} })
}

// LoseReply loses the answer to one request: the next that any client sends, on a
// connection there is or a new one. The request is carried out. When the server
// answers it, the answer is swallowed and the connection reset, so that the
// client cannot know. The channel is closed when that has happened, and never if
// it does not happen: Heal came before the request, or the connection ended
// without an answer. Two calls lose the answers on two connections.
//
// The proxy does not know the protocol. A request is a chunk of bytes as the
// client wrote it, and the first bytes that the server sends after it are taken
// for the answer: where requests overlap on one connection, or the server speaks
// unasked, see StallReplies.
func (p *Proxy) LoseReply() <-chan struct{} { return p.arm(&loss{}) }

// LoseReplyFunc is LoseReply for the next request that match says is the one: the
// third, or the first that names a key. It is given each chunk that a client
// sends, must not keep or change it, and must call neither the proxy nor anything
// that blocks. A chunk holds at most 32 KiB; a longer request comes in pieces.
func (p *Proxy) LoseReplyFunc(match func(request []byte) bool) <-chan struct{} {
	return p.arm(&loss{match: match})
}

// LoseRequest loses one request: the next that any client sends, on a connection
// there is or a new one, is swallowed, and its connection is reset. The server
// never sees it. To the client this looks as LoseReply does. The channel is closed
// when it has happened.
func (p *Proxy) LoseRequest() <-chan struct{} { return p.arm(&loss{request: true}) }

// LoseRequestFunc is to LoseRequest what LoseReplyFunc is to LoseReply.
func (p *Proxy) LoseRequestFunc(match func(request []byte) bool) <-chan struct{} {
	return p.arm(&loss{request: true, match: match})
}

func (p *Proxy) arm(o *loss) <-chan struct{} {
	o.struck = make(chan struct{})
	p.set(func(f *faults) { f.armed = append(f.armed, o) })
	return o.struck
}

func (p *Proxy) set(change func(*faults)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.faults)
	p.settle()
}

// settle makes a change of the faults felt: it wakes whoever waits for one, and
// returns when nothing that set out under the old faults is still passing a gate
// that is now shut. The wait is short, for what is passing is interrupted, even
// if its peer does not read. p.mu is held, and given up while waiting.
func (p *Proxy) settle() {
	for l := range p.links {
		for i := range l.pipes {
			q := &l.pipes[i]
			q.wake.Broadcast()
			if p.gates[q.dir] != open {
				q.interrupt()
			}
		}
	}
	for p.leaking() {
		p.moved.Wait()
	}
}

func (p *Proxy) leaking() bool {
	for l := range p.links {
		for i := range l.pipes {
			if l.pipes[i].busy && p.gates[i] != open {
				return true
			}
		}
	}
	return false
}

func (p *Proxy) resetAll() {
	for l := range p.links {
		l.end(true)
	}
}

// acceptRetry is how long the proxy leaves a process alone that has run out of
// file descriptors.
const acceptRetry = 5 * time.Millisecond

func (p *Proxy) serve() {
	for {
		conn, err := p.listener.AcceptTCP()
		switch {
		case err == nil:
			p.admit(conn)
		case errors.Is(err, net.ErrClosed):
			return
		default:
			p.mu.Lock()
			p.marker = "" // it may be what cannot be accepted
			p.moved.Broadcast()
			p.mu.Unlock()
			time.Sleep(acceptRetry)
		}
	}
}

func (p *Proxy) admit(conn *net.TCPConn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.marking {
		p.moved.Wait()
	}
	switch {
	case p.marker != "" && p.marker == conn.RemoteAddr().String():
		p.marker = ""
		p.moved.Broadcast()
		reset(conn)
	case p.closed || p.refusing:
		reset(conn)
	default:
		p.link(conn)
	}
}

// catchUp returns when every connection made before the call has been admitted or
// refused. A client is connected when the kernel says so, which may be before the
// proxy knows; without this, Cut would miss the client that has just come. The
// kernel hands connections over in their order, so it is enough to make one more
// and to see it come out. p.mu is held, and given up while waiting.
func (p *Proxy) catchUp() {
	for !p.closed && (p.marking || p.marker != "") {
		p.moved.Wait() // for another call
	}
	if p.closed {
		return
	}
	p.marking = true
	p.mu.Unlock()
	conn, err := net.DialTimeout("tcp", p.Addr(), time.Second)
	p.mu.Lock()
	p.marking = false
	if err == nil {
		defer reset(conn.(*net.TCPConn))
		p.marker = conn.LocalAddr().String()
	}
	p.moved.Broadcast()
	for !p.closed && err == nil && p.marker == conn.LocalAddr().String() {
		p.moved.Wait()
	}
}

// reset closes conn so that its peer sees a reset, and loses what it has not read.
func reset(conn *net.TCPConn) {
	conn.SetLinger(0)
	conn.Close()
}
