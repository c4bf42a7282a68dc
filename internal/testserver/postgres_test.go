package testserver_test

import (
	"net"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

// answers says whether whoever listens at addr answers a start-up message of PostgreSQL.
func answers(t *testing.T, addr string) bool {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return false
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Second))
	_, err = conn.Write([]byte("\x00\x00\x00\x2a\x00\x03\x00\x00user\x00postgres\x00database\x00template1\x00\x00"))
	if err != nil {
		return false
	}
	reply := make([]byte, 1)
	_, err = conn.Read(reply)
	return err == nil && reply[0] == 'R'
}

func TestPostgres(t *testing.T) {
	s := testserver.Postgres(t)
	pooled := testserver.PgBouncer(t, s, "transaction")
	open, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	for range 3 {
		if !answers(t, s.Addr()) {
			t.Error("no answer after the start")
		}
		s.Pause()
		if answers(t, s.Addr()) {
			t.Error("an answer while paused")
		}
		s.Resume()
		if !answers(t, pooled.Addr()) {
			t.Error("no answer of the pooler after Resume")
		}
		s.Kill()
		if answers(t, s.Addr()) {
			t.Error("an answer after Kill")
		}
		s.Start()
		s.Stop()
		s.Start()
	}
}

// A backend that serves is a child of the server's process: it stops and ends with it.
func TestPostgresChildrenShareItsFate(t *testing.T) {
	s := testserver.Postgres(t)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ping := func() error { // a request for encryption is answered by the child
		conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := conn.Write([]byte{0, 0, 0, 8, 4, 210, 22, 47}); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 1))
		return err
	}
	s.Pause()
	if err := ping(); err == nil {
		t.Error("a paused server's child has answered")
	}
	s.Resume()
	s.Kill()
	conn.SetDeadline(time.Now().Add(time.Second))
	for err = nil; err == nil; _, err = conn.Read(make([]byte, 64)) { //nolint:revive // until the end
	}
	if timeout, ok := err.(net.Error); ok && timeout.Timeout() { //nolint:errorlint // as the connection returns it
		t.Error("the connection to a killed server's child is open")
	}
}
