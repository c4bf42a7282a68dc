package zklock_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// eavesdropper reads off the handshakes of a Locker what a second client needs to take its
// session over: the ID and the password, which package zk does not tell.
type eavesdropper struct {
	mu       sync.Mutex
	greeting []byte         // the last
	away     bool           // the Locker cannot connect
	asked    map[string]int // handshakes that asked for that session
}

// session returns the ID of the session that was last overheard.
func (e *eavesdropper) session() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(e.greeting[12:20])
}

// handshakes returns how many handshakes have asked for a session.
func (e *eavesdropper) handshakes(id string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.asked[id]
}

func (e *eavesdropper) keepAway(away bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.away = away
}

func (e *eavesdropper) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	e.mu.Lock()
	away := e.away
	e.mu.Unlock()
	if away {
		return nil, errors.New("kept away")
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &overheard{Conn: conn, e: e}, nil
}

type overheard struct {
	net.Conn
	e        *eavesdropper
	asked    bool
	greeting []byte
}

// Write takes the session off the request that every connection begins with, behind length,
// version, last transaction seen and timeout.
func (o *overheard) Write(b []byte) (int, error) {
	const at = 4 + 4 + 8 + 4
	if !o.asked {
		o.asked = true
		o.e.mu.Lock()
		if o.e.asked == nil {
			o.e.asked = make(map[string]int)
		}
		o.e.asked[string(b[at:at+8])]++
		o.e.mu.Unlock()
	}
	return o.Conn.Write(b)
}

func (o *overheard) Read(b []byte) (int, error) {
	n, err := o.Conn.Read(b)
	if len(o.greeting) >= greetingLen {
		return n, err
	}
	o.greeting = append(o.greeting, b[:n]...)
	if len(o.greeting) >= greetingLen && binary.BigEndian.Uint64(o.greeting[12:]) != 0 { // not refused
		o.e.mu.Lock()
		defer o.e.mu.Unlock()
		o.e.greeting = o.greeting
	}
	return n, err
}

// greetingLen is length, version, timeout, session, and a password of 16 bytes with its length.
const greetingLen = 4 + 4 + 4 + 8 + 4 + 16

// resume connects as the session that was overheard, as another process would.
func (e *eavesdropper) resume(t *testing.T, addr string) net.Conn {
	t.Helper()
	e.mu.Lock()
	session := e.greeting[12:20]
	password := e.greeting[20:greetingLen]
	e.mu.Unlock()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	request := binary.BigEndian.AppendUint32(nil, 4+8+4+8+4+16)
	request = append(request, make([]byte, 4+8)...) // version, last transaction seen
	request = binary.BigEndian.AppendUint32(request, uint32(ttl.Milliseconds()))
	request = append(append(request, session...), password...)
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, greetingLen)
	if _, err := io.ReadFull(conn, answer); err != nil {
		t.Fatal(err)
	}
	if string(answer[12:20]) != string(session) {
		t.Fatalf("the session was not resumed: %x", answer)
	}
	return conn
}

// expire closes the session that was overheard.
func (e *eavesdropper) expire(t *testing.T, addr string) {
	t.Helper()
	e.keepAway(true) // or the Locker would take it back before it is closed
	defer e.keepAway(false)
	conn := e.resume(t, addr)
	const closeSession = -11
	request := binary.BigEndian.AppendUint32(nil, 8)
	request = binary.BigEndian.AppendUint32(request, 1)
	code := int32(closeSession)
	request = binary.BigEndian.AppendUint32(request, uint32(code))
	if _, err := conn.Write(request); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, conn) // the server closes it
}

// Codes of requests, for proxies that lose what comes of them.
const (
	opDelete   = 2
	opGetData  = 4
	opSetData  = 5
	opChildren = 12
	opCreate   = 1
	opMulti    = 14
)

// isRequest matches packets that begin with a request of that code.
func isRequest(code uint32) func([]byte) bool {
	return func(packet []byte) bool {
		return len(packet) >= 12 && binary.BigEndian.Uint32(packet[8:]) == code
	}
}
