package testserver

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// PostgresData is a data directory outside any server: a copy of one.
type PostgresData struct{ dir string }

// OnData has [Postgres] serve a copy of a data directory.
func OnData(d PostgresData) Option {
	return func(o *options) { o.data = d.dir }
}

// CopyData copies the data directory of a server of [Postgres] that is stopped.
func CopyData(t testing.TB, s *Server) PostgresData {
	t.Helper()
	s.ours("copied")
	if s.proc != nil {
		t.Fatal("testserver: CopyData: the server is running")
	}
	return PostgresData{copyOf(t, s.data)}
}

// Standby takes a base backup of a server of [Postgres] that runs, which makes a standby of
// it when it is served: until Promote.
func Standby(t testing.TB, primary *Server) PostgresData {
	t.Helper()
	primary.ours("replicated")
	dir := postgresDir(t)
	data := filepath.Join(dir, "data")
	cmd := exec.Command(postgresBin(t, "pg_basebackup"), "-D", data, "-R", "-X", "stream", "-c", "fast",
		"-d", "postgres://"+PostgresUser+"@"+primary.Addr()+"/")
	asPostgres(t, cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("testserver: pg_basebackup: %v: %s", err, out)
	}
	return PostgresData{data}
}

// copyOf copies a data directory into a new one.
func copyOf(t testing.TB, data string) string {
	t.Helper()
	dir := postgresDir(t)
	cmd := exec.Command("cp", "-R", data, filepath.Join(dir, "data"))
	asPostgres(t, cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("testserver: cp: %v: %s", err, out)
	}
	return filepath.Join(dir, "data")
}

// postgresDir returns a directory that PostgreSQL may write to. It is not in t.TempDir,
// whose parents only the user who runs the tests may enter.
func postgresDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "holdfast-postgres-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := giveToPostgres(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}
