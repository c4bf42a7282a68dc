package redislock_test

import (
	"bufio"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// monitor is a connection on which a server tells what it is asked.
type monitor struct{ lines *bufio.Scanner }

func watch(t *testing.T, addr string) *monitor {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(3 * patience))
	m := &monitor{bufio.NewScanner(conn)}
	m.lines.Buffer(nil, 1<<20)
	if _, err := fmt.Fprint(conn, "MONITOR\r\n"); err != nil || !m.lines.Scan() || m.lines.Text() != "+OK" {
		t.Fatalf("MONITOR: %v, %q", err, m.lines.Text())
	}
	return m
}

var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// keys returns the keys of all commands up to now, also of those that scripts ran. What
// of a command is a key, the server says.
func (m *monitor) keys(t *testing.T, c *redis.Client) map[string]bool {
	t.Helper()
	const mark = "that is all"
	do(t, c, "echo", mark)
	names := make(map[string]bool)
	for m.lines.Scan() {
		ask := []any{"command", "getkeys"}
		for _, text := range quoted.FindAllString(m.lines.Text(), -1) {
			arg, err := strconv.Unquote(text)
			if err != nil {
				t.Fatalf("%s: %v", m.lines.Text(), err)
			}
			if arg == mark {
				return names
			}
			ask = append(ask, arg)
		}
		found, _ := c.Do(t.Context(), ask...).StringSlice() // an error: it has none
		for _, name := range found {
			names[name] = true
		}
	}
	t.Fatalf("MONITOR ended: %v", m.lines.Err())
	return nil
}
