package conformance_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
)

const (
	// patience bounds what must happen. It is never waited for in a passing run.
	patience = time.Minute
	// moment is how long we look at what must not happen. A slow machine can only
	// make such a look less sharp, never fail it.
	moment = 20 * time.Millisecond
)

func TestProxyPassesBytes(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	for i := range 3 {
		c.roundTrip(fmt.Sprintf("line %d", i))
	}
	other := dialLine(t, p.Addr())
	other.roundTrip("other")

	// A half-close arrives behind the bytes before it, and replies go on.
	c.send("last")
	_ = c.conn.(*net.TCPConn).CloseWrite()
	c.wantReply("last")
	c.wantEOF()
	s.wantEnded(1)

	// Nothing is kept for connections that are over.
	other.conn.Close()
	s.wantEnded(2)
	wantNoGoroutine(t, "conformance.(*pipe)")
}

func TestProxyRejectsBadTarget(t *testing.T) {
	if p, err := conformance.NewProxy("no-port"); err == nil {
		p.Close()
		t.Fatal("NewProxy accepted an address without a port")
	}
}

func TestProxyPassesReset(t *testing.T) {
	t.Run("of the client", func(t *testing.T) {
		s := newLineServer(t)
		c := dialLine(t, newProxy(t, s.addr).Addr())
		c.roundTrip("x")
		c.conn.(*net.TCPConn).SetLinger(0)
		c.conn.Close()
		if err := s.wantEnd(0); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server sees %v, want a reset", err)
		}
	})
	t.Run("of the server", func(t *testing.T) {
		s := newLineServer(t)
		c := dialLine(t, newProxy(t, s.addr).Addr())
		c.roundTrip("x")
		c.send("RESET")
		c.wantReset()
	})
	t.Run("of a client that has closed its side", func(t *testing.T) {
		s := newLineServer(t)
		c := dialLine(t, newProxy(t, s.addr).Addr())
		c.send("FLOOD") // the server sends until it fails
		c.wantReply("FLOOD")
		c.conn.Close()
		if err := s.wantEnd(0); err == nil {
			t.Error("the server could send for ever to a client that is gone")
		}
	})
}

func TestProxyServerUnreachable(t *testing.T) {
	wantRefused(t, newProxy(t, "127.0.0.1:0")) // nobody can listen on port 0
}

// The three stalls, on a connection there is and on a new one.
func TestProxyStall(t *testing.T) {
	for _, tc := range []struct {
		name              string
		stall             func(*conformance.Proxy)
		requests, replies bool // pass
	}{
		{"both", (*conformance.Proxy).Stall, false, false},
		{"requests", (*conformance.Proxy).StallRequests, false, true},
		{"replies", (*conformance.Proxy).StallReplies, true, false},
		{"one, then the other", func(p *conformance.Proxy) { p.StallRequests(); p.StallReplies() }, false, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newLineServer(t)
			p := newProxy(t, s.addr)
			old, told := dialLine(t, p.Addr()), dialLine(t, p.Addr())
			old.roundTrip("before")
			told.roundTrip("SUBSCRIBE")

			tc.stall(p)
			fresh := dialLine(t, p.Addr())
			old.send("old")
			fresh.send("new")
			s.publish("news")
			if tc.replies {
				told.wantReply("news")
			} else {
				told.wantSilence()
			}
			old.wantSilence()
			fresh.wantSilence()
			if tc.requests {
				s.wantSeen("old", 1)
				s.wantSeen("new", 1)
			} else {
				s.wantUnseen("old", "new")
				s.wantConns(2)
			}

			p.Heal()
			old.wantReply("old")
			fresh.wantReply("new")
			if !tc.replies {
				told.wantReply("news")
			}
			s.wantSeen("old", 1)
			s.wantSeen("new", 1)
			for _, c := range []*lineClient{old, told, fresh} {
				c.roundTrip("after")
			}
		})
	}
}

func TestProxyStallHidesTheEnd(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	closed, cut := dialLine(t, p.Addr()), dialLine(t, p.Addr())
	closed.roundTrip("a")
	cut.roundTrip("b")

	p.Stall()
	closed.send("late")
	closed.conn.Close()
	cut.conn.(*net.TCPConn).SetLinger(0)
	cut.conn.Close()
	s.wantOpen(2)

	p.Heal()
	s.wantSeen("late", 1) // the request of a client that is gone is carried out
	s.wantEnded(2)
}

// A client that comes and goes in the partition never reaches the server, if the
// proxy knows of its end before Heal. No event tells that it does, so there is
// more than one try.
func TestProxyStallForgetsTheGone(t *testing.T) {
	for _, stall := range []func(*conformance.Proxy){(*conformance.Proxy).Stall, (*conformance.Proxy).Drop} {
		for try := 1; ; try++ {
			s := newLineServer(t)
			p := newProxy(t, s.addr)
			stall(p)
			c := dialLine(t, p.Addr())
			c.send("gone")
			_ = c.conn.(*net.TCPConn).CloseWrite()
			c.wantSilence() // not even this client sees anything closed
			p.Heal()
			line, err := c.read()
			if isReset(err) {
				dialLine(t, p.Addr()).roundTrip("after")
				s.wantUnseen("gone")
				s.wantConns(1)
				break
			}
			if line != "gone" || try == 10 {
				t.Fatalf("try %d: read %.40q, %v, want a reset", try, line, err)
			}
		}
	}
}

func TestProxyStallPushesBack(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	c.roundTrip("x")
	p.Stall()
	line := strings.Repeat("y", 1<<16-1)
	lines := c.fill(line)
	p.Heal()
	for range lines {
		c.wantReply(line)
	}
}

// Stall takes effect even while the proxy waits for a peer that does not read.
func TestProxyStallWhileBlocked(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	c.roundTrip("x")
	c.send("FLOOD")
	c.wantReply("FLOOD") // from now on we do not read
	s.wantBlocked()
	for range 5 {
		within(t, "Stall", p.Stall)
		p.Heal()
		within(t, "Drop", p.Drop)
		within(t, "Stall after Drop", p.Stall)
	}
	within(t, "Close", func() { p.Close() })
}

func TestProxyDrop(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	asks, told, ends, idle := dialLine(t, p.Addr()), dialLine(t, p.Addr()), dialLine(t, p.Addr()), dialLine(t, p.Addr())
	for _, c := range []*lineClient{asks, told, ends, idle} {
		c.roundTrip("before")
	}
	told.roundTrip("SUBSCRIBE")

	p.Drop()
	freshAsks, freshIdle := dialLine(t, p.Addr()), dialLine(t, p.Addr())
	asks.send("old" + tooMuch)
	freshAsks.send("new" + tooMuch)
	s.publish("news" + tooMuch)
	_ = ends.conn.(*net.TCPConn).CloseWrite()
	for _, c := range []*lineClient{asks, freshAsks, told, ends} {
		c.wantSilence()
	}
	s.wantOpen(4)

	p.Heal()
	asks.wantReset()
	freshAsks.wantReset()
	told.wantReset()
	if line, err := ends.read(); line != "" || !isReset(err) && !errors.Is(err, io.EOF) {
		t.Errorf("read %.40q, %v after the end was dropped", line, err)
	}
	s.wantEnded(3)
	idle.roundTrip("after")
	freshIdle.roundTrip("after, new")
	dialLine(t, p.Addr()).roundTrip("after, newer")
	s.wantUnseen("old"+tooMuch, "new"+tooMuch)
}

// tooMuch is more than the kernel keeps for a proxy that does not read, when the
// sender's buffer has a limit: when it is sent, the proxy has read some of it.
var tooMuch = strings.Repeat(".", 4<<20)

const sendBuffer = 64 << 10

// Drop takes nothing of what a stall holds, and Stall brings nothing back.
func TestProxyStallThenDrop(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	waits, full, holed := dialLine(t, p.Addr()), dialLine(t, p.Addr()), dialLine(t, p.Addr())
	waits.roundTrip("a")
	full.roundTrip("b")
	holed.roundTrip("c")
	p.Stall()
	full.fill(strings.Repeat("z", 1<<16-1))
	met := make(chan struct{})
	p.LoseRequestFunc(func(request []byte) bool { // not to lose it, to see it
		close(met)
		return false
	})
	waits.send("stalled")
	wait(t, "the proxy to read", met)
	p.Drop()
	full.send(tooMuch) // it has room again
	holed.send("dropped" + tooMuch)
	p.Stall()
	p.Heal()
	waits.wantReply("stalled")
	full.wantReset()
	holed.wantReset()
	s.wantUnseen("dropped" + tooMuch)
}

func TestProxyRefuse(t *testing.T) {
	for range 20 {
		s := newLineServer(t)
		p := newProxy(t, s.addr)
		var old []*lineClient
		for range 3 {
			old = append(old, dialLine(t, p.Addr()))
		}
		p.Refuse() // at once: the proxy may not know of them yet
		for _, c := range old {
			c.roundTrip("old")
		}
		wantRefused(t, p)
		refused, err := net.Dial("tcp", p.Addr())
		p.Heal() // at once: the proxy may not know of refused yet
		wantResetOf(t, refused, err)
		old[0].roundTrip("still")
		dialLine(t, p.Addr()).roundTrip("new")
		s.wantConns(4)
	}
}

func TestProxyCut(t *testing.T) {
	for range 20 {
		s := newLineServer(t)
		p := newProxy(t, s.addr)
		used := dialLine(t, p.Addr())
		used.roundTrip("x")
		idle := dialLine(t, p.Addr())
		latest := dialLine(t, p.Addr())
		p.Cut() // at once: the proxy may not know of latest yet
		used.wantReset()
		idle.wantReset()
		latest.wantReset()
		if err := s.wantEnd(0); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the server sees %v, want a reset", err)
		}
		dialLine(t, p.Addr()).roundTrip("new")
	}
}

func TestProxyCutWhileStalled(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	old := dialLine(t, p.Addr())
	old.roundTrip("x")
	p.Stall()
	old.send("lost")
	p.Cut()
	old.wantReset()
	fresh := dialLine(t, p.Addr())
	fresh.send("kept")
	fresh.wantSilence()
	p.Heal()
	fresh.wantReply("kept")
	s.wantUnseen("lost")
}

func TestProxyDown(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	old := dialLine(t, p.Addr())
	old.roundTrip("x")
	latest := dialLine(t, p.Addr())
	p.Down()
	old.wantReset()
	latest.wantReset()
	s.wantEnded(1)
	for range 3 {
		wantRefused(t, p)
	}
	p.Heal()
	dialLine(t, p.Addr()).roundTrip("new")
}

func TestProxyDelay(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	old := dialLine(t, p.Addr())
	old.roundTrip("x")
	const there, back = 40 * time.Millisecond, 30 * time.Millisecond
	p.Delay(there, back)
	fresh := dialLine(t, p.Addr())
	for _, c := range []*lineClient{old, fresh} {
		start := time.Now()
		c.roundTrip("slow")
		if took := time.Since(start); took < there+back {
			t.Errorf("a round trip took %v, want at least %v", took, there+back)
		}
	}

	// Latency, not throughput: requests in a row take nothing like as many delays.
	// The bound is loose, for a machine that has other work.
	const many = 200
	start := time.Now()
	for i := range many {
		old.send(fmt.Sprint("pipelined ", i))
	}
	for i := range many {
		old.wantReply(fmt.Sprint("pipelined ", i))
	}
	if took := time.Since(start); took > many*(there+back)/2 {
		t.Errorf("%d pipelined requests took %v under a delay of %v", many, took, there+back)
	}

	// A delay that is over is over for what is under way.
	p.Delay(time.Hour, time.Hour)
	old.send("patient")
	_ = old.conn.(*net.TCPConn).CloseWrite()
	old.wantSilence()
	p.Delay(0, time.Hour)
	s.wantSeen("patient", 1)
	p.Heal()
	old.wantReply("patient")
	old.wantEOF()
	fresh.roundTrip("fast")
}

// A stream comes through whole and in order, whatever holds it up on the way.
func TestProxyStream(t *testing.T) {
	const (
		some = 4 << 20
		much = 24 << 20 // more than the kernel holds: there are writes that wait
	)
	readAll := func(_ *conformance.Proxy, r io.Reader) ([]byte, error) { return io.ReadAll(r) }
	run := func(t *testing.T, size int, disturb func(*conformance.Proxy, <-chan struct{}), read func(*conformance.Proxy, io.Reader) ([]byte, error)) {
		s := newLineServer(t)
		p := newProxy(t, s.addr)
		c := dialLine(t, p.Addr())
		c.roundTrip("ECHO") // from now on the server sends back what it reads
		c.conn.SetDeadline(time.Now().Add(3 * patience))
		sent := make([]byte, size)
		source := rand.NewChaCha8([32]byte{})
		_, _ = source.Read(sent)
		lengths := rand.New(source)
		done := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { disturb(p, done) })
		wg.Go(func() {
			for rest := sent; len(rest) > 0; {
				n := min(len(rest), 1+lengths.IntN(100_000))
				if _, err := c.conn.Write(rest[:n]); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				rest = rest[n:]
			}
			_ = c.conn.(*net.TCPConn).CloseWrite()
		})
		got, err := read(p, c.buf)
		close(done)
		wg.Wait()
		if err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%d bytes came back of %d, equal: %v, error: %v", len(got), len(sent), bytes.Equal(got, sent), err)
		}
	}
	quiet := func(*conformance.Proxy, <-chan struct{}) {}
	t.Run("undisturbed", func(t *testing.T) {
		run(t, some, quiet, readAll)
	})
	t.Run("delay", func(t *testing.T) {
		run(t, some, func(p *conformance.Proxy, done <-chan struct{}) {
			for i := 0; ; i++ {
				p.Delay(time.Duration(i%3)*time.Millisecond, time.Duration(i%5)*time.Millisecond)
				select {
				case <-done:
					return
				case <-time.After(3 * time.Millisecond):
				}
			}
		}, readAll)
	})
	t.Run("stall and heal", func(t *testing.T) {
		run(t, much, func(p *conformance.Proxy, done <-chan struct{}) {
			stalls := []func(){p.Stall, p.StallRequests, p.StallReplies}
			for i := 0; ; i++ {
				stalls[i%3]()
				p.Delay(time.Duration(i%2)*time.Millisecond, time.Duration(i%2)*time.Millisecond)
				runtime.Gosched()
				p.Heal()
				select {
				case <-done:
					return
				case <-time.After(time.Duration(i%4) * 100 * time.Microsecond):
				}
			}
		}, readAll)
	})
	// Here the proxy mostly waits in a write that is half done when Stall comes.
	t.Run("stall and heal before a slow reader", func(t *testing.T) {
		run(t, much, quiet, func(p *conformance.Proxy, r io.Reader) ([]byte, error) {
			var got bytes.Buffer
			for {
				if _, err := io.CopyN(&got, r, 50_000); errors.Is(err, io.EOF) {
					return got.Bytes(), nil
				} else if err != nil {
					return got.Bytes(), err
				}
				p.Stall()
				p.Heal()
			}
		})
	})
}

func TestProxyLoseReply(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		t.Run(fmt.Sprintf("new connection=%v", fresh), func(t *testing.T) {
			s := newLineServer(t)
			p := newProxy(t, s.addr)
			idle := dialLine(t, p.Addr())
			idle.roundTrip("a")
			var c *lineClient
			if !fresh {
				c = dialLine(t, p.Addr())
				c.roundTrip("b")
			}
			struck := p.LoseReply()
			if fresh {
				c = dialLine(t, p.Addr())
			}
			wantOpen(t, struck)
			c.send("request")
			wait(t, "LoseReply to strike", struck)
			if n := s.count("request"); n != 1 {
				t.Errorf("the request was carried out %d times when the reply was lost, want 1", n)
			}
			c.wantReset()
			s.wantEnded(1)

			idle.roundTrip("c") // once is enough
			dialLine(t, p.Addr()).roundTrip("d")
			s.wantSeen("request", 1)
		})
	}
}

func TestProxyLoseReplyWaitsForTheServer(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	struck := p.LoseReply()
	c.send("HOLD")
	s.wantSeen("HOLD", 1) // it arrived, but the server does not answer yet
	c.wantSilence()
	wantOpen(t, struck)
	p.Heal() // comes too late for a request that was met
	s.release()
	wait(t, "LoseReply to strike", struck)
	c.wantReset()
}

func TestProxyLoseReplyWhileStalled(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	c.roundTrip("x")
	p.Stall()
	met := make(chan struct{})
	struck := p.LoseReplyFunc(func([]byte) bool {
		close(met)
		return true
	})
	c.send("request")
	wait(t, "the request to be met", met)
	wantOpen(t, struck)
	c.wantSilence()
	s.wantUnseen("request")
	p.Heal()
	wait(t, "LoseReply to strike", struck)
	c.wantReset()
	s.wantSeen("request", 1)
}

// What the server sends before the request has reached it is no answer.
func TestProxyLoseReplyTellsNewsFromAnswers(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	c := dialLine(t, p.Addr())
	c.roundTrip("SUBSCRIBE")
	p.StallRequests()
	met := make(chan struct{})
	struck := p.LoseReplyFunc(func([]byte) bool {
		close(met)
		return true
	})
	c.send("request")
	wait(t, "the request to be met", met)
	s.publish("news")
	c.wantReply("news")
	wantOpen(t, struck)
	p.Heal()
	wait(t, "LoseReply to strike", struck)
	c.wantReset()
	s.wantSeen("request", 1)
}

func TestProxyLoseTwoReplies(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	first, second := p.LoseReply(), p.LoseReply()
	a, b := dialLine(t, p.Addr()), dialLine(t, p.Addr())
	a.send("HOLD")
	s.wantSeen("HOLD", 1)
	a.send("more") // of the same connection: it is lost with it
	a.wantSilence()
	s.release()
	wait(t, "the first", first)
	wantOpen(t, second)
	b.send("b")
	wait(t, "the second", second)
	a.wantReset()
	b.wantReset()
}

func TestProxyLoseRequest(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	idle, c := dialLine(t, p.Addr()), dialLine(t, p.Addr())
	idle.roundTrip("a")
	c.roundTrip("b")
	struck := p.LoseRequest()
	c.send("request")
	wait(t, "LoseRequest to strike", struck)
	c.wantReset()
	s.wantEnded(1)
	idle.roundTrip("c")
	dialLine(t, p.Addr()).roundTrip("d")
	s.wantUnseen("request")
}

func TestProxyLoseFunc(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	names := func(key string) func([]byte) bool {
		return func(request []byte) bool { return bytes.Contains(request, []byte(key)) }
	}
	reply, request := p.LoseReplyFunc(names("k1")), p.LoseRequestFunc(names("k2"))
	a, b := dialLine(t, p.Addr()), dialLine(t, p.Addr())
	a.roundTrip("hello")
	b.roundTrip("hello")
	b.send("SET k2")
	wait(t, "the loss of the request", request)
	b.wantReset()
	a.roundTrip("hello")
	a.send("SET k1")
	wait(t, "the loss of the reply", reply)
	a.wantReset()
	s.wantSeen("SET k1", 1)
	s.wantUnseen("SET k2")
}

func TestProxyHealDisarms(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	a, b := p.LoseReply(), p.LoseRequest()
	p.Heal()
	c := dialLine(t, p.Addr())
	c.roundTrip("x")
	c.roundTrip("y")
	wantOpen(t, a)
	wantOpen(t, b)
}

func TestProxyClose(t *testing.T) {
	for name, fault := range map[string]func(*conformance.Proxy){
		"none":   func(*conformance.Proxy) {},
		"stall":  (*conformance.Proxy).Stall,
		"drop":   (*conformance.Proxy).Drop,
		"refuse": (*conformance.Proxy).Refuse,
		"down":   (*conformance.Proxy).Down,
		"delay":  func(p *conformance.Proxy) { p.Delay(time.Hour, time.Hour) },
		"lose":   func(p *conformance.Proxy) { p.LoseReply() },
	} {
		t.Run(name, func(t *testing.T) {
			s := newLineServer(t)
			p := newProxy(t, s.addr)
			old := dialLine(t, p.Addr())
			old.roundTrip("x")
			fault(p)
			fresh, dialErr := net.Dial("tcp", p.Addr())
			if name != "down" {
				old.send("HOLD")
			}
			within(t, "Close", func() {
				if err := p.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
			old.wantReset()
			wantResetOf(t, fresh, dialErr)
			wantNoGoroutine(t, "conformance.(*Proxy)", "conformance.(*pipe)")
			if err := p.Close(); err != nil {
				t.Errorf("second Close: %v", err)
			}
			within(t, "calls after Close", func() {
				p.Stall()
				p.Drop()
				p.Refuse()
				p.Cut()
				p.Down()
				p.Delay(1, 1)
				p.LoseReply()
				p.Heal()
			})
		})
	}
}

// Everybody calls everything at once: for the race detector, and for Close.
func TestProxyConcurrentCalls(t *testing.T) {
	s := newLineServer(t)
	p := newProxy(t, s.addr)
	var clients, faults sync.WaitGroup
	stop := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				conn, err := net.Dial("tcp", p.Addr())
				if err != nil {
					continue
				}
				buf := bufio.NewReader(conn)
				for i := range 20 {
					conn.SetDeadline(time.Now().Add(5 * time.Millisecond))
					want := fmt.Sprintf("%d\n", i)
					if _, err := io.WriteString(conn, want); err != nil {
						break
					}
					got, err := buf.ReadString('\n')
					if err != nil {
						break
					}
					if got != want {
						t.Errorf("got %q, want %q", got, want)
					}
				}
				conn.Close()
			}
		})
	}
	calls := []func(){
		p.Stall, p.StallRequests, p.StallReplies, p.Drop, p.Refuse, p.Cut, p.Down, p.Heal, p.Heal,
		func() { p.Delay(time.Millisecond, time.Millisecond) },
		func() { p.LoseReply() },
		func() { p.LoseRequest() },
	}
	for i := range 3 {
		random := rand.New(rand.NewPCG(uint64(i), 7))
		faults.Go(func() {
			for range 150 {
				calls[random.IntN(len(calls))]()
				p.Heal()
			}
		})
	}
	within(t, "the faults", faults.Wait)
	p.Heal()
	dialLine(t, p.Addr()).roundTrip("still alive")
	within(t, "Close", func() { p.Close() })
	close(stop)
	within(t, "the clients", clients.Wait)
	wantNoGoroutine(t, "conformance.(*Proxy)", "conformance.(*pipe)")
}

func BenchmarkProxyRoundTrip(b *testing.B) {
	s := newLineServer(b)
	p := newProxy(b, s.addr)
	for _, bc := range []struct{ name, addr string }{{"direct", s.addr}, {"proxy", p.Addr()}} {
		b.Run(bc.name, func(b *testing.B) {
			c := dialLine(b, bc.addr)
			c.roundTrip("ECHO")
			c.conn.SetDeadline(time.Time{})
			buf := make([]byte, 64)
			for b.Loop() {
				if _, err := c.conn.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c.conn, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func newProxy(t testing.TB, target string) *conformance.Proxy {
	t.Helper()
	p, err := conformance.NewProxy(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// lineServer answers each line with the same line, and remembers all.
type lineServer struct {
	t        testing.TB
	addr     string
	listener net.Listener
	running  sync.WaitGroup

	mu       sync.Mutex
	changed  sync.Cond
	seen     map[string]int
	conns    map[net.Conn]bool // true: has subscribed
	accepted int
	ended    map[int]error // by order of acceptance; nil: end of file
	blocked  bool          // a FLOOD waits for its client to read
	released bool          // HOLD no longer holds
}

func newLineServer(t testing.TB) *lineServer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &lineServer{
		t: t, addr: listener.Addr().String(), listener: listener,
		seen: make(map[string]int), conns: make(map[net.Conn]bool), ended: make(map[int]error),
	}
	s.changed.L = &s.mu
	s.running.Go(s.serve)
	t.Cleanup(s.close)
	return s
}

func (s *lineServer) close() {
	s.listener.Close()
	s.mu.Lock()
	s.released = true
	s.changed.Broadcast()
	for conn := range s.conns {
		conn.Close()
	}
	s.mu.Unlock()
	s.running.Wait()
}

func (s *lineServer) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		_ = conn.(*net.TCPConn).SetWriteBuffer(sendBuffer)
		s.mu.Lock()
		s.conns[conn] = false
		i := s.accepted
		s.accepted++
		s.changed.Broadcast()
		s.mu.Unlock()
		s.running.Go(func() { s.talk(conn, i) })
	}
}

func (s *lineServer) talk(conn net.Conn, i int) {
	buf := bufio.NewReader(conn)
	var err error
	for err == nil {
		var line string
		if line, err = buf.ReadString('\n'); err != nil {
			break
		}
		line = strings.TrimSuffix(line, "\n")
		s.mu.Lock()
		s.seen[line]++
		s.changed.Broadcast()
		for line == "HOLD" && !s.released {
			s.changed.Wait()
		}
		if line == "SUBSCRIBE" {
			s.conns[conn] = true
		}
		if line == "RESET" {
			conn.(*net.TCPConn).SetLinger(0)
			conn.Close()
		}
		_, err = io.WriteString(conn, line+"\n")
		s.mu.Unlock()
		switch line {
		case "ECHO":
			_, err = io.Copy(struct{ io.Writer }{conn}, buf)
			if err == nil {
				err = io.EOF
			}
		case "FLOOD":
			err = s.flood(conn)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, conn)
	s.ended[i] = err
	s.changed.Broadcast()
}

// flood sends until it fails, and says so when a write has to wait.
func (s *lineServer) flood(conn net.Conn) error {
	chunk := make([]byte, 1<<16)
	for {
		conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		_, err := conn.Write(chunk)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			s.mu.Lock()
			s.blocked = true
			s.changed.Broadcast()
			s.mu.Unlock()
		case err != nil:
			return err
		}
	}
}

// publish sends line to every connection that has subscribed.
func (s *lineServer) publish(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn, subscribed := range s.conns {
		if subscribed {
			_, _ = io.WriteString(conn, line+"\n")
		}
	}
}

func (s *lineServer) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
	s.changed.Broadcast()
}

// until waits for cond, which is called with the mutex held.
func (s *lineServer) until(what string, cond func() bool) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	late := false
	alarm := time.AfterFunc(patience, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		late = true
		s.changed.Broadcast()
	})
	defer alarm.Stop()
	for !cond() {
		if late {
			s.t.Fatalf("waited %v for the server to see %s: %d lines, %d connections, ended %v", patience, what, len(s.seen), s.accepted, s.ended)
		}
		s.changed.Wait()
	}
}

func (s *lineServer) count(line string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[line]
}

func (s *lineServer) wantSeen(line string, times int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%q", line), func() bool { return s.seen[line] >= times })
	if n := s.count(line); n != times {
		s.t.Errorf("the server saw %.40q %d times, want %d", line, n, times)
	}
}

func (s *lineServer) wantUnseen(lines ...string) {
	s.t.Helper()
	for _, line := range lines {
		if n := s.count(line); n != 0 {
			s.t.Errorf("the server saw %.40q", line)
		}
	}
}

// wantConns: so many connections were made in all.
func (s *lineServer) wantConns(n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("%d connections", n), func() bool { return s.accepted >= n })
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted != n {
		s.t.Errorf("the server saw %d connections, want %d", s.accepted, n)
	}
}

// wantOpen: so many connections live, and none ends in a moment.
func (s *lineServer) wantOpen(n int) {
	s.t.Helper()
	s.wantConns(n)
	<-time.After(moment)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ended) != 0 || s.accepted != n {
		s.t.Errorf("the server saw %d connections and the end of %d, want %d and 0", s.accepted, len(s.ended), n)
	}
}

// wantEnded waits for the end of n connections.
func (s *lineServer) wantEnded(n int) {
	s.t.Helper()
	s.until(fmt.Sprintf("the end of %d connections", n), func() bool { return len(s.ended) >= n })
}

// wantEnd waits for the end of the connection that was accepted as the i-th, from
// 0, and returns how it ended.
func (s *lineServer) wantEnd(i int) (err error) {
	s.t.Helper()
	s.until(fmt.Sprintf("the end of connection %d", i), func() bool {
		var ended bool
		err, ended = s.ended[i]
		return ended
	})
	return err
}

func (s *lineServer) wantBlocked() {
	s.t.Helper()
	s.until("that its client does not read", func() bool { return s.blocked })
}

type lineClient struct {
	t    testing.TB
	conn net.Conn
	buf  *bufio.Reader
}

func dialLine(t testing.TB, addr string) *lineClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.(*net.TCPConn).SetWriteBuffer(sendBuffer)
	return &lineClient{t: t, conn: conn, buf: bufio.NewReader(conn)}
}

func (c *lineClient) send(line string) {
	c.t.Helper()
	c.conn.SetWriteDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
		c.t.Fatalf("send %.40q: %v", line, err)
	}
}

func (c *lineClient) read() (string, error) {
	c.conn.SetReadDeadline(time.Now().Add(patience))
	line, err := c.buf.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}

func (c *lineClient) wantReply(want string) {
	c.t.Helper()
	if line, err := c.read(); err != nil || line != want {
		c.t.Fatalf("read %.40q, %v, want %.40q", line, err, want)
	}
}

func (c *lineClient) roundTrip(line string) {
	c.t.Helper()
	c.send(line)
	c.wantReply(line)
}

// fill sends line until there is no room, and returns how many went in whole. It
// takes what does not go in for some moments as full: on a slow machine, too early.
func (c *lineClient) fill(line string) (whole int) {
	c.t.Helper()
	for range 1 << 10 {
		c.conn.SetWriteDeadline(time.Now().Add(5 * moment))
		if _, err := io.WriteString(c.conn, line+"\n"); err != nil {
			return whole
		}
		whole++
	}
	c.t.Fatal("no end of room in a stalled connection")
	return 0
}

// wantSilence: the connection is open and mute.
func (c *lineClient) wantSilence() {
	c.t.Helper()
	c.conn.SetReadDeadline(time.Now().Add(moment))
	if line, err := c.buf.ReadString('\n'); !errors.Is(err, os.ErrDeadlineExceeded) || line != "" {
		c.t.Fatalf("read %.40q, %v, want silence", line, err)
	}
}

func (c *lineClient) wantEOF() {
	c.t.Helper()
	if line, err := c.read(); !errors.Is(err, io.EOF) || line != "" {
		c.t.Fatalf("read %.40q, %v, want end of file", line, err)
	}
}

// wantReset: the connection is reset, and of what was lost nothing has come.
func (c *lineClient) wantReset() {
	c.t.Helper()
	if line, err := c.read(); !isReset(err) || line != "" {
		c.t.Fatalf("read %.40q, %v, want a reset", line, err)
	}
}

// wantRefused: a new client is turned away.
func wantRefused(t testing.TB, p *conformance.Proxy) {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	wantResetOf(t, conn, err)
}

// wantResetOf: the connection that net.Dial returned is reset. The reset may be so
// fast that Dial reports it.
func wantResetOf(t testing.TB, conn net.Conn, err error) {
	t.Helper()
	if err == nil {
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(patience))
		_, err = conn.Read(make([]byte, 1))
	}
	if !isReset(err) {
		t.Fatalf("got %v, want a reset", err)
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// within fails the test if f does not return.
func within(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	wait(t, what+" to return", done)
}

func wait(t testing.TB, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(patience):
		t.Fatalf("waited %v for %s\n%s", patience, what, stacks())
	}
}

func wantOpen(t testing.TB, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
		t.Fatal("a loss has struck that must not")
	default:
	}
}

// wantNoGoroutine: none is in, or was started by, such a function. The last
// instructions of one may follow what Close waits for, so we look again.
func wantNoGoroutine(t testing.TB, in ...string) {
	t.Helper()
	var left string
	is := func(name string) bool { return strings.Contains(left, name) }
	for end := time.Now().Add(patience); time.Now().Before(end); runtime.Gosched() {
		if left = stacks(); !slices.ContainsFunc(in, is) {
			return
		}
	}
	t.Fatalf("goroutines are left:\n%s", left)
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}
