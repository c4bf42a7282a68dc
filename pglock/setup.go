package pglock

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// identity is what a connection has reached.
type identity struct {
	pid     int64
	started int64 // 0: the current role may not know
	version int
	standby bool
	missing bool   // of what tokens need
	born    string // names this run of this server, and this database
}

// newSession connects, and makes a session of the connection. All its errors are marked:
// whatever it has come to, nothing is held.
func (b *backend) newSession(ctx context.Context, waits bool) (*session, error) {
	conn, err := b.connect(ctx)
	if err != nil {
		return nil, connectFault(err)
	}
	s, err := b.setUp(ctx, conn, waits)
	if err != nil {
		closeConn(conn)
		return nil, setupFault(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = s.conn.Close()
		return nil, driver.Refused(errClosed)
	}
	b.sessions[s] = struct{}{}
	b.running.Go(s.watch)
	return s, nil
}

func (b *backend) setUp(ctx context.Context, conn *pgconn.PgConn, waits bool) (*session, error) {
	id, err := identify(ctx, conn, b.cfg)
	if err != nil {
		return nil, err
	}
	if id.pid != int64(conn.PID()) {
		if err := b.refusePooling(ctx, conn, id.pid); err != nil {
			return nil, err
		}
	}
	if id.standby {
		return nil, driver.Refused(errors.New("the server is a standby, whose locks nobody else sees"))
	}
	s := &session{
		b: b, pid: id.pid, waits: waits, direct: id.pid == int64(conn.PID()),
		turn: make(chan struct{}, 1), reading: reading{wanted: make(chan struct{}, 1)}, holds: make(map[int64]*hold),
	}
	if !b.cfg.NoTokens && id.missing {
		if err := createSchema(ctx, conn, b.cfg.Schema); err != nil {
			return nil, err
		}
		if id, err = identify(ctx, conn, b.cfg); err != nil {
			return nil, err
		}
	}
	s.born = id.born
	if s.started, err = b.startOf(ctx, conn, id); err != nil {
		return nil, err
	}
	draw := "1::bigint"
	if !b.cfg.NoTokens {
		if err := checkGrants(ctx, conn, b.cfg.Schema); err != nil {
			return nil, err
		}
		e, err := currentEpoch(ctx, conn, b.cfg.Schema, id)
		if err != nil {
			return nil, err
		}
		s.epoch.Store(e)
		draw = fmt.Sprintf("nextval('%s.token')", literal(quote(b.cfg.Schema)))
	}
	s.proved = driver.Now()
	if _, err := exec(ctx, conn, settings(id.version, b.cfg.TTL, b.slice)); err != nil {
		return nil, err
	}
	if waits {
		_, err := exec(ctx, conn, waitFunction) // a role may not be allowed to make temporary functions
		s.quiet = err == nil
		if err != nil && codeOf(err) == "" {
			return nil, err
		}
	}
	var script []string
	texts := statements(id.pid, draw, s.quiet)
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		script = append(script, "PREPARE "+name+" "+texts[name])
	}
	if _, err := exec(ctx, conn, strings.Join(script, "; ")); err != nil {
		return nil, err
	}
	hijacked, err := conn.Hijack()
	if err != nil {
		return nil, err
	}
	s.conn, s.front = hijacked.Conn, hijacked.Frontend
	s.reading.apart = s.conn.SetDeadline(time.Time{}) != nil
	return s, nil
}

// unhurried goes before statements of one message: a role's limits of time, which may be short,
// do not hold for them. It is over with them.
const unhurried = "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0; "

// identify asks what the connection has reached. It sets nothing that lasts: a pooler might
// give that to others.
func identify(ctx context.Context, conn *pgconn.PgConn, cfg Config) (id identity, err error) {
	q := literal(quote(cfg.Schema))
	objects := "false, ''"
	if !cfg.NoTokens {
		objects = fmt.Sprintf("pg_catalog.to_regclass('%s.epoch') IS NULL OR pg_catalog.to_regclass('%s.incarnation') IS NULL "+
			"OR pg_catalog.to_regclass('%s.token') IS NULL, "+
			"pg_catalog.concat_ws('-', (SELECT system_identifier FROM pg_catalog.pg_control_system()), "+
			"(SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()), "+
			"pg_catalog.to_regclass('%s.incarnation')::oid, "+
			"(extract(epoch FROM pg_catalog.pg_postmaster_start_time()) * 1000000)::bigint)", q, q, q, q)
	}
	rows, err := exec(ctx, conn, unhurried+"SELECT pg_catalog.pg_backend_pid(), coalesce((extract(epoch FROM backend_start) * 1000000)::bigint, 0), "+
		"pg_catalog.current_setting('server_version_num'), pg_catalog.pg_is_in_recovery(), "+objects+
		" FROM pg_catalog.pg_stat_activity WHERE pid = pg_catalog.pg_backend_pid()")
	if err != nil {
		return id, err
	}
	if len(rows) != 1 || len(rows[0]) != 6 {
		return id, errPooled // another backend has answered the second half of the question
	}
	row := rows[0]
	var pidErr, startedErr, versionErr error
	id.pid, pidErr = strconv.ParseInt(row[0], 10, 64)
	id.started, startedErr = strconv.ParseInt(row[1], 10, 64)
	id.version, versionErr = strconv.Atoi(row[2])
	id.standby, id.missing, id.born = row[3] == "t", row[4] == "t", row[5]
	return id, errors.Join(pidErr, startedErr, versionErr)
}

// startOf returns when the backend was started. Where the settings of a role have put the
// session into another (ALTER ROLE ... SET role), that one may neither see nor terminate
// backends of the first: so the session goes back to its own.
func (b *backend) startOf(ctx context.Context, conn *pgconn.PgConn, id identity) (int64, error) {
	if id.started != 0 {
		return id.started, nil
	}
	if _, err := exec(ctx, conn, "SET role = none"); err != nil {
		return 0, err
	}
	id, err := identify(ctx, conn, b.cfg)
	if err == nil && id.started == 0 {
		err = driver.Permanent(errors.New("the role may not see its own session in pg_stat_activity: connect as another"))
	}
	return id.started, err
}

// refusePooling returns an error if whoever stands between here and the server gives each
// transaction another backend. Somebody does stand there: the server would not have
// answered with the process ID of another. If it keeps a backend for each client, then
// two clients never have the same one, and each always the same.
//
// Which backend a pooler gives depends on who else uses it, and when: while others have most of
// the pool, the same one may be left for conn at each turn. So there are many looks, no two of
// which take the same time, nor turns as many as the one before.
func (b *backend) refusePooling(ctx context.Context, conn *pgconn.PgConn, pid int64) error {
	other, err := b.connect(ctx)
	if err != nil {
		return connectFault(err)
	}
	defer closeConn(other)
	const looks = 15 // pools of all kinds were seen within 7
	for i := range looks {
		if err := lookForPooling(ctx, conn, other, strconv.FormatInt(pid, 10), i%3); err != nil {
			return err
		}
	}
	return nil
}

// lookForPooling has other take a backend, and asks conn for its own meanwhile, and so many
// times after.
func lookForPooling(ctx context.Context, conn, other *pgconn.PgConn, pid string, after int) error {
	rows, err := exec(ctx, other, "BEGIN; "+whoAnswers)
	if err != nil {
		if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
			return driver.Permanent(fmt.Errorf("%w (%s)", errPooled, pgErr.Message)) // statement pooling
		}
		return fmt.Errorf("a second connection, to see whether the pooler is in session mode, is not served "+
			"(has its pool room for more than one?): %w", err)
	}
	if len(rows) != 1 || rows[0][0] == pid {
		return errPooled
	}
	if err := stillOn(ctx, conn, pid); err != nil {
		return err
	}
	if _, err := exec(ctx, other, "ROLLBACK"); err != nil {
		return err
	}
	for range after {
		if err := stillOn(ctx, conn, pid); err != nil {
			return err
		}
	}
	return nil
}

// whoAnswers asks for the process ID of a backend, and has it busy for a moment.
const whoAnswers = "SELECT pg_catalog.pg_backend_pid() FROM pg_catalog.pg_sleep(pg_catalog.random() * 0.002)"

// stillOn returns an error if conn has another backend than that of pid.
func stillOn(ctx context.Context, conn *pgconn.PgConn, pid string) error {
	rows, err := exec(ctx, conn, whoAnswers)
	if err == nil && (len(rows) != 1 || rows[0][0] != pid) {
		err = errPooled
	}
	return err
}

//go:embed schema.sql
var schemaText string

// Schema returns the SQL that creates what tokens need, in a schema of that name; "" means
// the default. A Locker does so itself, if it may: an administrator whose roles may not
// applies it, and grants what its last lines say.
func Schema(name string) string {
	if name == "" {
		return schemaText
	}
	return strings.ReplaceAll(schemaText, quote(defaultSchema), quote(name))
}

// begin begins a transaction that neither the settings of roles disturb, nor functions of
// the application's with the names of the server's.
const begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL search_path = pg_catalog; " + unhurried

// createSchema creates what tokens need. Several sessions may do so at once: they take
// turns.
func createSchema(ctx context.Context, conn *pgconn.PgConn, schema string) error {
	_, err := exec(ctx, conn, begin+
		fmt.Sprintf("SELECT pg_catalog.pg_advisory_xact_lock(%d); ", number("schema", schema))+
		Schema(schema)+"; COMMIT")
	if err == nil {
		return nil
	}
	_, _ = exec(ctx, conn, "ROLLBACK")
	return err
}

// checkGrants returns an error if the role may not do all that tokens need. Most of that is
// done only when an epoch is over, which may be long after the program was started.
func checkGrants(ctx context.Context, conn *pgconn.PgConn, schema string) error {
	q := quote(schema)
	needs := []struct{ kind, object, privileges string }{
		{"table", q + ".epoch", "SELECT, INSERT, UPDATE"},
		{"table", q + ".incarnation", "SELECT, INSERT, DELETE"},
		{"sequence", q + ".token", "USAGE, SELECT, UPDATE"},
	}
	columns := []string{"pg_catalog.quote_ident(current_user)"}
	for _, need := range needs {
		var missing []string
		for privilege := range strings.SplitSeq(need.privileges, ", ") {
			missing = append(missing, fmt.Sprintf("CASE WHEN NOT pg_catalog.has_%s_privilege('%s', '%s') THEN '%[3]s' END",
				need.kind, literal(need.object), privilege))
		}
		columns = append(columns, "pg_catalog.concat_ws(', ', "+strings.Join(missing, ", ")+")")
	}
	rows, err := exec(ctx, conn, unhurried+"SELECT "+strings.Join(columns, ", "))
	if err != nil {
		return err
	}
	if len(rows) != 1 || len(rows[0]) != len(columns) {
		return errSenseless
	}
	var grants []string
	for i, need := range needs {
		if missing := rows[0][1+i]; missing != "" {
			grants = append(grants, fmt.Sprintf("GRANT %s ON %s %s TO %s", missing, need.kind, need.object, rows[0][0]))
		}
	}
	if grants == nil {
		return nil
	}
	return driver.Permanent(fmt.Errorf("the role may not do all that tokens need; have its rights mended (%s), "+
		"or do without tokens (token=off)", strings.Join(grants, "; ")))
}

// exec runs statements and returns the rows of the last that gave any.
func exec(ctx context.Context, conn *pgconn.PgConn, sql string) (rows [][]string, err error) {
	results, err := conn.Exec(ctx, sql).ReadAll()
	if err != nil {
		return nil, err
	}
	for _, r := range results {
		if len(r.FieldDescriptions) == 0 {
			continue
		}
		rows = nil
		for _, values := range r.Rows {
			row := make([]string, len(values))
			for i, v := range values {
				row[i] = string(v)
			}
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// closeConn closes a connection on which nothing is held. One that a statement has left
// unusable pgx goes on reading for up to 15 seconds, unless it is closed under it.
func closeConn(conn *pgconn.PgConn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = conn.Close(ctx)
	_ = conn.Conn().Close()
}

// literal escapes text for a string in single quotes.
func literal(text string) string { return strings.ReplaceAll(text, "'", "''") }
