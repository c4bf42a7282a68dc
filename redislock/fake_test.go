package redislock_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// fake is a server that answers as the test wants, for what a real one says too
// rarely.
type fake struct {
	addr string

	mu    sync.Mutex
	asked []string // names of the commands that reply was asked about
}

// newFake starts a fake. Connections are made as with any server; reply gets every
// other command, and its result is sent as it is; "" closes the connection.
func newFake(t *testing.T, reply func(command []string) string) *fake {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{addr: listener.Addr().String()}
	var running sync.WaitGroup
	t.Cleanup(func() { listener.Close(); running.Wait() })
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			running.Go(func() { f.serve(conn, reply) })
		}
	})
	return f
}

func (f *fake) serve(conn net.Conn, reply func([]string) string) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		answer := "-ERR unknown command\r\n" // HELLO: then go-redis does without
		switch command[0] {
		case "hello", "client":
		default:
			f.mu.Lock()
			f.asked = append(f.asked, command[0])
			f.mu.Unlock()
			answer = reply(command)
		}
		if answer == "" {
			return
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

func (f *fake) commands() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.asked, " ")
}

func readCommand(in *bufio.Reader) ([]string, error) {
	var n int
	if _, err := fmt.Fscanf(in, "*%d\r\n", &n); err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		var size int
		if _, err := fmt.Fscanf(in, "$%d\r\n", &size); err != nil {
			return nil, err
		}
		text := make([]byte, size+2)
		if _, err := io.ReadFull(in, text); err != nil {
			return nil, err
		}
		command[i] = string(text[:size])
	}
	command[0] = strings.ToLower(command[0])
	return command, nil
}
