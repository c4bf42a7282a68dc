package testserver

import (
	"bufio"
	"context"
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
	bin := lookPath(t, "redis-server")
	dir := t.TempDir()
	return launch(t, program{
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
	})
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
