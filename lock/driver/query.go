package driver

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Query reads the query of a backend's URL strictly: what is unknown, repeated
// or malformed is an error. Read every key, then ask Err.
type Query struct {
	values url.Values
	read   []string
	err    error
}

// NewQuery returns the Query of u.
func NewQuery(u *url.URL) *Query {
	values, err := url.ParseQuery(u.RawQuery)
	q := &Query{values: values}
	if err != nil { // its text quotes the query, which may hold a secret
		q.err = fmt.Errorf("%w: the query of the %s URL does not parse; percent-encode special characters", lock.ErrInvalid, u.Scheme)
	}
	return q
}

// String returns the value of key, or def.
func (q *Query) String(key, def string) string {
	if v, ok := q.take(key); ok {
		return v
	}
	return def
}

// Duration returns the value of key, or def. It must not be negative.
func (q *Query) Duration(key string, def time.Duration) time.Duration {
	v, ok := q.take(key)
	if !ok {
		return def
	}
	d, err := time.ParseDuration(v)
	if err != nil || d < 0 {
		q.fail("%s=%q is not a duration, as in 500ms or 10s", key, v)
	}
	return d
}

// Int returns the value of key, or def. It must not be negative.
func (q *Query) Int(key string, def int) int {
	v, ok := q.take(key)
	if !ok {
		return def
	}
	n, err := strconv.ParseUint(v, 10, 31)
	if err != nil {
		q.fail("%s=%q is not a whole number", key, v)
	}
	return int(n)
}

// Bool returns the value of key, or def.
func (q *Query) Bool(key string, def bool) bool {
	v, ok := q.take(key)
	if !ok {
		return def
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		q.fail("%s=%q is not true or false", key, v)
	}
	return b
}

// Err returns what was wrong: a malformed value, or a key that nobody read.
func (q *Query) Err() error {
	if q.err != nil {
		return q.err
	}
	for key := range q.values {
		if !slices.Contains(q.read, key) {
			return fmt.Errorf("%w: unknown query key %q (known: %s)", lock.ErrInvalid, key,
				strings.Join(append([]string{"ttl", "owner", "token_base", "require"}, q.read...), ", "))
		}
	}
	return nil
}

func (q *Query) take(key string) (string, bool) {
	q.read = append(q.read, key)
	values, ok := q.values[key]
	if !ok {
		return "", false
	}
	if len(values) > 1 {
		q.fail("query key %q is given %d times; give it once", key, len(values))
	}
	return values[0], true
}

func (q *Query) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("%w: "+format, append([]any{lock.ErrInvalid}, args...)...)
	}
}
