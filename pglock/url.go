package pglock

import (
	"fmt"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

// passed are the query keys that mean to pgx what they mean to libpq.
var passed = []string{
	"host", "port", "connect_timeout", "target_session_attrs", "passfile", "service", "servicefile",
	"sslmode", "sslrootcert", "sslcert", "sslkey", "sslsni", "sslnegotiation",
}

// parse reads what a URL says of the server. No error shows any part of the URL that could
// be a secret: of a password whose special characters were not percent-encoded, a piece
// can be anywhere.
func parse(u *url.URL, q *driver.Query) (*pgconn.Config, error) {
	bad := func(what string) (*pgconn.Config, error) {
		return nil, fmt.Errorf("%w: %s; write %s://user:password@host:5432/database, and percent-encode special characters",
			lock.ErrInvalid, what, u.Scheme)
	}
	database := strings.TrimPrefix(u.Path, "/")
	switch {
	case u.Opaque != "", u.Fragment != "":
		return bad("the URL has no // after its scheme, or has a #")
	case strings.Contains(database, "/"):
		return bad("the path is not the name of a database")
	}
	for key := range u.Query() {
		if strings.ContainsAny(key, "@:/") {
			return bad("what looks like a host comes after a question mark")
		}
	}
	text := dsn{}
	hosts, ports := splitHosts(u.Host)
	text.add("host", hosts)
	text.add("port", ports)
	text.add("user", u.User.Username())
	text.add("dbname", database)
	for _, key := range passed {
		text.add(key, q.String(key, ""))
	}
	for _, key := range ofPools {
		q.String(key, "")
	}
	if err := q.Err(); err != nil {
		return nil, err
	}
	c, err := pgconn.ParseConfig(text.String()) // without the password, which its errors might show
	if err != nil {
		return nil, fmt.Errorf("%w: %w", lock.ErrInvalid, err)
	}
	if password, ok := u.User.Password(); ok {
		c.Password = password
	}
	return c, nil
}

// ofPools are query keys that URLs have for pools of connections. Locks have none, and so
// these mean nothing to them.
var ofPools = []string{
	"pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime", "pool_max_conn_lifetime_jitter",
	"pool_max_conn_idle_time", "pool_health_check_period",
}

// splitHosts takes a list of hosts apart, as in a:1,b:2.
func splitHosts(list string) (hosts, ports string) {
	if list == "" {
		return "", ""
	}
	var h, p []string
	for host := range strings.SplitSeq(list, ",") {
		u := url.URL{Host: host}
		h = append(h, u.Hostname())
		port := u.Port()
		if port == "" {
			port = "5432"
		}
		p = append(p, port)
	}
	return strings.Join(h, ","), strings.Join(p, ",")
}

// dsn is a connection string of keywords and values.
type dsn struct{ strings.Builder }

func (d *dsn) add(key, value string) {
	if value == "" {
		return
	}
	value = strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value)
	fmt.Fprintf(d, "%s='%s' ", key, value)
}
