package testserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

const postgresEnv = "HOLDFAST_TEST_POSTGRES"

// PostgresUser is the superuser of the servers that [Postgres] starts. It needs no
// password.
const PostgresUser = "postgres"

// Postgres starts a PostgreSQL server of the test's own, or returns the one that
// HOLDFAST_TEST_POSTGRES (host:port, superuser postgres without a password) names,
// whose database postgres the test shares with whoever else uses it.
//
// A server that is not [Durable] still recovers from a crash of its processes: without
// fsync only the machine's own crash would lose data.
func Postgres(t testing.TB, opts ...Option) *Server {
	t.Helper()
	o := resolve(opts)
	if o.data != "" && os.Getenv(postgresEnv) != "" {
		t.Skipf("testserver: the server named by %s cannot be given a data directory", postgresEnv)
	}
	if s := fromEnv(t, postgresEnv, o, pingPostgres); s != nil {
		return s
	}
	data := o.data
	if data == "" {
		made, err := cluster()
		if err != nil {
			t.Fatalf("testserver: %v", err)
		}
		data = copyOf(t, filepath.Join(made, "data"))
	}
	bin := postgresBin(t, "postgres")
	s := launch(t, program{
		name:  "postgres",
		forks: true,
		stop:  syscall.SIGINT, // SIGTERM waits for the clients to leave
		command: func(port int) *exec.Cmd {
			args := []string{
				"-D", data,
				"-h", "127.0.0.1",
				"-p", strconv.Itoa(port),
				"-k", "", // no Unix socket
				"-c", "shared_buffers=16MB",
				"-c", "max_wal_size=64MB",
				"-c", "autovacuum=off",
			}
			if !o.durable {
				args = append(args, "-c", "fsync=off")
			}
			cmd := exec.Command(bin, append(args, o.args...)...)
			asPostgres(t, cmd)
			return cmd
		},
		ready: pingPostgres,
	})
	s.data = data
	return s
}

// cluster is a data directory that was made once for the test binary: making one takes
// longer than copying it.
var cluster = sync.OnceValues(func() (dir string, err error) {
	dir, err = os.MkdirTemp("", "holdfast-initdb-")
	if err != nil {
		return "", err
	}
	made.Store(&dir)
	if err := giveToPostgres(dir); err != nil {
		return "", err
	}
	bin, err := findPostgres("initdb")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(bin, "-D", filepath.Join(dir, "data"), "--no-sync", "-A", "trust", "-U", PostgresUser, "-E", "UTF8", "--locale", "C")
	cmd.Dir = dir
	if err := runAsPostgres(cmd); err != nil {
		return "", err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w: %s", err, out)
	}
	return dir, nil
})

// made is where cluster has made one.
var made atomic.Pointer[string]

// RemoveClusters removes what [Postgres] keeps for its next call. A TestMain calls it
// after the last test.
func RemoveClusters() {
	if dir := made.Load(); dir != nil {
		_ = os.RemoveAll(*dir)
	}
}

// findPostgres returns the path of a program of PostgreSQL. Debian has most of them where
// no PATH leads, a directory for each version.
func findPostgres(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	paths, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if len(paths) == 0 {
		return "", fmt.Errorf("%s is not installed; run: make setup", name)
	}
	return slices.MaxFunc(paths, func(a, b string) int { return versionOf(a) - versionOf(b) }), nil
}

func versionOf(path string) int {
	v, _ := strconv.Atoi(strings.Split(path, "/")[4])
	return v
}

// PostgresProgram returns the path of a program that comes with PostgreSQL, such as
// pg_dump.
func PostgresProgram(t testing.TB, name string) string {
	t.Helper()
	return postgresBin(t, name)
}

func postgresBin(t testing.TB, name string) string {
	t.Helper()
	path, err := findPostgres(name)
	if err != nil {
		t.Fatalf("testserver: %v", err)
	}
	return path
}

// account is who runs PostgreSQL, which refuses to be run by root; nil: we do.
var account = sync.OnceValues(func() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root, and there is no user for it; run: make setup (%w)", err)
	}
	uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, errors.Join(uidErr, gidErr)
})

func asPostgres(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if err := runAsPostgres(cmd); err != nil {
		t.Fatalf("testserver: %v", err)
	}
}

func runAsPostgres(cmd *exec.Cmd) error {
	who, err := account()
	if err != nil || who == nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	return nil
}

func giveToPostgres(path string) error {
	who, err := account()
	if err != nil || who == nil {
		return err
	}
	return os.Chown(path, int(who.Uid), int(who.Gid))
}

// pingPostgres returns nil if the server, or a pooler before it, lets the superuser in,
// or asks for a password.
func pingPostgres(ctx context.Context, addr string) error {
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
	const version = 3 << 16
	params := "user\x00" + PostgresUser + "\x00database\x00postgres\x00\x00"
	startup := binary.BigEndian.AppendUint32(nil, uint32(8+len(params)))
	startup = binary.BigEndian.AppendUint32(startup, version)
	if _, err := conn.Write(append(startup, params...)); err != nil {
		return err
	}
	reply := make([]byte, 5)
	if _, err := io.ReadFull(conn, reply); err != nil {
		return err
	}
	if reply[0] != 'R' {
		return fmt.Errorf("the answer to a start-up message is a message %q", reply[0])
	}
	_, _ = conn.Write([]byte{'X', 0, 0, 0, 4}) // or the server logs a client that vanished
	return nil
}
