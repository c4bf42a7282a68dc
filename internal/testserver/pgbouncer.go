package testserver

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// PgBouncer starts a pooler before a server of [Postgres]. mode is its pool_mode:
// session, transaction or statement. Each of settings is a line of its configuration.
func PgBouncer(t testing.TB, server *Server, mode string, settings ...string) *Server {
	t.Helper()
	bin, err := findPgBouncer()
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	dir, err := os.MkdirTemp("", "holdfast-pgbouncer-") //nolint:usetesting // its parents only the user who runs the tests may enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil { // who runs the pooler may be another
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	users := filepath.Join(dir, "users")
	write(t, users, fmt.Sprintf("%q \"\"\n", PostgresUser))
	return launch(t, program{
		name: "pgbouncer",
		command: func(own int) *exec.Cmd {
			ini := filepath.Join(dir, "pgbouncer.ini")
			write(t, ini, strings.Join(append([]string{
				"[databases]",
				fmt.Sprintf("* = host=%s port=%s", host, port),
				"[pgbouncer]",
				"listen_addr = 127.0.0.1",
				fmt.Sprintf("listen_port = %d", own),
				"unix_socket_dir =",
				"auth_type = trust",
				"auth_file = " + users,
				"pool_mode = " + mode,
			}, settings...), "\n")+"\n")
			cmd := exec.Command(bin, ini)
			asPostgres(t, cmd) // it does not run as root, either
			return cmd
		},
		ready: pingPostgres,
	})
}

// findPgBouncer looks where Debian has it, too, which a user's PATH may not have.
func findPgBouncer() (string, error) {
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("pgbouncer is not installed; run: make setup")
}
