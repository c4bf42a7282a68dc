package testserver

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/process"
)

const (
	// A start takes milliseconds, but a machine may be busy with other tests.
	startLimit = time.Minute
	// Redis waits for its replicas for up to 10 s before it ends.
	stopLimit = 20 * time.Second
	portTries = 5
)

// program is what a kind of server adds to a [Server].
type program struct {
	name  string
	forks bool           // what serves are children of the process
	stop  syscall.Signal // how its operator ends it; 0: SIGTERM
	// command returns the command that serves on a loopback port. It is called for
	// each start, with the same port, once the port has proved to be good.
	command func(port int) *exec.Cmd
	// ready makes one request and returns nil if it was answered.
	ready func(ctx context.Context, addr string) error
}

// Server is a server that runs as a process of the test's own, until the test
// ends. Its methods fail the test on errors: call them from the goroutine of the
// test that the Server was made for.
type Server struct {
	t       testing.TB
	program program
	addr    string
	env     string // the variable that named the server; "": it is our own

	claim claim
	log   string           // path
	data  string           // the directory that it serves, where somebody may copy it
	proc  *process.Process // nil: not running
}

// Addr returns the server's host:port, the same for its whole life.
func (s *Server) Addr() string { return s.addr }

// Log returns what the server has logged, all its runs together.
func (s *Server) Log() string {
	s.t.Helper()
	s.ours("read of")
	log, err := os.ReadFile(s.log)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(log)
}

// CanFault says whether Pause, Resume, Kill, Stop and Start work. They skip the
// test if the server was named by the environment.
func (s *Server) CanFault() bool { return s.env == "" }

// Pause stops the process, as a machine that hangs: connections stay open, and
// nothing is answered until Resume.
func (s *Server) Pause() {
	s.t.Helper()
	if err := s.running("paused").Pause(); err != nil {
		s.fatalf("cannot be paused: %v", err)
	}
}

// Resume lets a paused process go on.
func (s *Server) Resume() {
	s.t.Helper()
	if err := s.running("resumed").Resume(); err != nil {
		s.fatalf("cannot be resumed: %v", err)
	}
}

// Kill ends the process as a crash does (SIGKILL), paused or not.
func (s *Server) Kill() {
	s.t.Helper()
	s.running("killed").Kill()
	s.proc = nil
}

// Stop ends the process as its operator would, paused or not.
func (s *Server) Stop() { s.end(cmp.Or(s.program.stop, syscall.SIGTERM)) }

// Abort ends a server of [Postgres] as pg_ctl -m immediate does (SIGQUIT): without a
// goodbye to its disk.
func (s *Server) Abort() { s.end(syscall.SIGQUIT) }

func (s *Server) end(sig syscall.Signal) {
	s.t.Helper()
	p := s.running("stopped")
	p.Terminate(sig)
	select {
	case <-p.Exited():
		s.proc = nil
	case <-time.After(stopLimit):
		s.fatalf("did not end within %v of %v", stopLimit, sig)
	}
}

// Start starts a server again that was killed or stopped, on the same port and
// data, and returns when it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.ours("started")
	if s.proc != nil {
		s.t.Fatalf("testserver: Start: %s is running", s.program.name)
	}
	if err := s.run(); err != nil {
		s.fatalf("%v", err)
	}
}

// StartAll is Start for servers of which none serves before several of them run.
func StartAll(servers ...*Server) {
	errs := make([]error, len(servers))
	var started sync.WaitGroup
	for i, s := range servers {
		s.t.Helper()
		s.ours("started")
		if s.proc != nil {
			s.t.Fatalf("testserver: StartAll: %s on %s is running", s.program.name, s.addr)
		}
		started.Go(func() { errs[i] = s.run() })
	}
	started.Wait()
	for i, err := range errs {
		if err != nil {
			servers[i].fatalf("%v", err)
		}
	}
}

// launch starts p on a free port, and ends it when the test is over.
func launch(t testing.TB, p program) *Server {
	t.Helper()
	s := newServer(t, p)
	for range portTries {
		s.claim = claimPort(t)
		s.addr = loopback(s.claim.port)
		err := s.run()
		if err == nil {
			return s
		}
		if portFree(s.claim.port) {
			s.fatalf("%v", err)
		}
		// Another program has taken the port between our look and the server's.
		s.claim.release()
	}
	s.fatalf("lost its port %d times", portTries)
	return nil
}

// launchAll starts servers that have to know each other's ports, and again on others if one of
// those was taken meanwhile.
func launchAll(t testing.TB, what string, start func() ([]*Server, error)) []*Server {
	t.Helper()
	var err error
	for range portTries {
		var servers []*Server
		if servers, err = start(); err == nil {
			return servers
		}
		for _, s := range servers {
			s.remove()
		}
	}
	t.Fatalf("testserver: %s does not come up: %v", what, err)
	return nil
}

// newServer returns a server of p that does not run yet, and ends it when the test is
// over. Its claim and addr are still to be set.
func newServer(t testing.TB, p program) *Server {
	t.Helper()
	s := &Server{t: t, program: p, log: filepath.Join(t.TempDir(), p.name+".log")}
	t.Cleanup(s.remove)
	return s
}

// remove ends the process, if it runs, and gives the port back.
func (s *Server) remove() {
	if s.proc != nil {
		s.proc.Kill()
		s.proc = nil
	}
	s.claim.release()
}

// fromEnv returns the server that an environment variable names, or nil.
func fromEnv(t testing.TB, env string, o options, ready func(context.Context, string) error) *Server {
	t.Helper()
	addr := os.Getenv(env)
	if addr == "" {
		return nil
	}
	if len(o.args) > 0 || o.tlsCert != "" {
		t.Skipf("testserver: the server named by %s cannot be given the arguments %q, or a certificate", env, o.args)
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	if err := ready(ctx, addr); err != nil {
		t.Fatalf("testserver: the server named by %s does not answer: %v", env, err)
	}
	return &Server{t: t, addr: addr, env: env}
}

// run starts the process and waits until it answers. If it returns an error,
// nothing runs.
func (s *Server) run() error {
	log, err := appendTo(s.log)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	cmd := s.program.command(s.claim.port)
	cmd.Stdout, cmd.Stderr = log, log
	begin := process.Start
	if s.program.forks {
		begin = process.StartForking
	}
	p, err := begin(cmd)
	if err != nil {
		return err
	}
	if err := s.await(p); err != nil {
		p.Kill()
		return err
	}
	s.proc = p
	return nil
}

func (s *Server) await(p *process.Process) error {
	deadline := time.Now().Add(startLimit)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		err := s.program.ready(ctx, s.addr)
		cancel()
		// Looked at even after an answer, which can have come from a stranger who
		// took the port.
		if err := p.Ended(); err != nil {
			return err
		}
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("gave no answer within %v: %w", startLimit, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// ours skips the test if the server is not ours to be treated like that.
func (s *Server) ours(done string) {
	s.t.Helper()
	if !s.CanFault() {
		s.t.Skipf("testserver: the server named by %s cannot be %s; unset it to run this test", s.env, done)
	}
}

// running returns the process to which something is to be done.
func (s *Server) running(done string) *process.Process {
	s.t.Helper()
	s.ours(done)
	if s.proc == nil {
		s.t.Fatalf("testserver: %s is not running and cannot be %s", s.program.name, done)
	}
	if err := s.proc.Ended(); err != nil {
		s.fatalf("%v, before it was %s", err, done)
	}
	return s.proc
}

// fatalf fails the test, with the server's log.
func (s *Server) fatalf(format string, args ...any) {
	s.t.Helper()
	log, err := os.ReadFile(s.log)
	if err != nil {
		log = []byte(err.Error())
	}
	s.t.Logf("testserver: the log of %s:\n%s", s.program.name, log)
	s.t.Fatalf("testserver: %s on %s %s", s.program.name, s.addr, fmt.Sprintf(format, args...))
}

func lookPath(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("testserver: %s is not installed; run: make setup", program)
	}
	return path
}

// appendTo opens a log file that several runs write to, one after the other.
func appendTo(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}

// write writes a file that anybody may read: some servers run as another user.
func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Error(err) // and not Fatal: servers start side by side
	}
}
