package testserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

const redisEnv = "HOLDFAST_TEST_REDIS"

// Redis starts a Redis server of the test's own, or returns the one that
// HOLDFAST_TEST_REDIS (host:port, no password) names, whose keys the test shares
// with whoever else uses it.
func Redis(t testing.TB, opts ...Option) *Server {
	t.Helper()
	o := resolve(opts)
	if s := fromEnv(t, redisEnv, o, pingRedis); s != nil {
		return s
	}
	return launch(t, redisServer(t, o))
}

// RedisNodes starts Redis servers of the test's own in cluster mode. They do not know of
// each other, and have no slots.
func RedisNodes(t testing.TB, nodes int, opts ...Option) []*Server {
	t.Helper()
	o := resolve(append([]Option{Args("--cluster-enabled", "yes")}, opts...))
	return launchAll(t, fmt.Sprintf("a cluster of %d", nodes), func() ([]*Server, error) { return redisNodes(t, nodes, o) })
}

// toBus is how much higher the port is on which the nodes of a cluster talk.
const toBus = 10000

func redisNodes(t testing.TB, nodes int, o options) ([]*Server, error) {
	t.Helper()
	servers := make([]*Server, nodes)
	errs := make([]error, nodes)
	for i := range nodes {
		s := newServer(t, redisServer(t, o))
		claims := claimPorts(t, 0, toBus)
		t.Cleanup(claims[1].release)
		s.claim = claims[0]
		s.addr = loopback(s.claim.port)
		servers[i], errs[i] = s, s.run()
	}
	return servers, errors.Join(errs...)
}

func redisServer(t testing.TB, o options) program {
	t.Helper()
	bin := lookPath(t, "redis-server")
	dir := t.TempDir()
	return program{
		name: "redis-server",
		command: func(port int) *exec.Cmd {
			args := []string{
				"--bind", "127.0.0.1",
				"--port", strconv.Itoa(port),
				"--dir", dir,
				"--save", "",
				"--appendonly", "no",
			}
			if o.durable {
				args = append(args, "--appendonly", "yes", "--appendfsync", "always")
			}
			return exec.Command(bin, append(args, o.args...)...)
		},
		ready: pingRedis,
	}
}

// pingRedis returns nil if the server answers PING. That it wants a password
// first is an answer as well; that it is loading its data is not: it would refuse
// every other command.
func pingRedis(ctx context.Context, addr string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if _, err := conn.Write([]byte("*1\r\n$4\r\nPING\r\n")); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	if strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH") {
		return nil
	}
	return fmt.Errorf("PING: %q", line)
}
