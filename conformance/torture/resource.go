package torture

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
)

// resource is what the locks guard: for each key it remembers the greatest token that it
// has accepted, and refuses smaller ones. It lives in the test's process, and no fault
// touches it. It is served over a socket of the file system, a line for a write.
type resource struct {
	log      *log
	listener net.Listener
	serving  sync.WaitGroup

	mu    sync.Mutex
	fence map[string]uint64
	conns map[net.Conn]struct{} // nil when closed
}

func newResource(path string, l *log) (*resource, error) {
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	r := &resource{log: l, listener: listener, fence: make(map[string]uint64), conns: make(map[net.Conn]struct{})}
	r.serving.Go(r.accept)
	return r, nil
}

func (r *resource) close() {
	_ = r.listener.Close()
	r.mu.Lock()
	for c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
	r.mu.Unlock()
	r.serving.Wait()
}

func (r *resource) accept() {
	for {
		conn, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		if r.conns == nil {
			r.mu.Unlock()
			_ = conn.Close()
			return
		}
		r.conns[conn] = struct{}{}
		r.serving.Go(func() { r.serve(conn) })
		r.mu.Unlock()
	}
}

func (r *resource) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close()
		r.mu.Lock()
		delete(r.conns, conn)
		r.mu.Unlock()
	}()
	lines := bufio.NewReader(conn)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		var key string
		var token, value uint64
		if _, err := fmt.Sscanf(line, "%s %d %d\n", &key, &token, &value); err != nil {
			return
		}
		accepted, fence := r.write(key, token, value)
		if _, err := fmt.Fprintf(conn, "%t %d\n", accepted, fence); err != nil {
			return
		}
	}
}

// write judges a write. It is logged before anybody else's is judged: the log has
// decisions in their order.
func (r *resource) write(key string, token, value uint64) (accepted bool, fence uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if accepted = token >= r.fence[key]; accepted {
		r.fence[key] = token
	}
	fence = r.fence[key]
	r.log.add(Event{Kind: Decided, Key: key, Token: token, Value: value, OK: accepted, Fence: fence})
	return accepted, fence
}

// pen writes to a resource, for one goroutine.
type pen struct {
	conn  net.Conn
	lines *bufio.Reader
}

func newPen(path string) (*pen, error) {
	conn, err := net.Dial("unix", path)
	if err != nil {
		return nil, err
	}
	return &pen{conn, bufio.NewReader(conn)}, nil
}

func (p *pen) write(key string, token, value uint64) (accepted bool, fence uint64, err error) {
	if _, err := fmt.Fprintf(p.conn, "%s %d %d\n", key, token, value); err != nil {
		return false, 0, err
	}
	line, err := p.lines.ReadString('\n')
	if err != nil {
		return false, 0, err
	}
	if _, err := fmt.Sscanf(line, "%t %d\n", &accepted, &fence); err != nil {
		return false, 0, errors.New("the resource said: " + line)
	}
	return accepted, fence, nil
}
