package backends

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Config is what a URL can say, for configuration files. Its password is written as
// it is, with no percent-encoding. A field that is zero is one that is not given.
//
// Its tags are for encoding/json and for YAML packages such as go.yaml.in/yaml/v3.
// They pass over a field that they do not know, which may be one misspelt, unless
// told not to: see the examples.
//
// Marshalled, a Config is such a file, password included: so it is in the log of a
// handler that marshals a struct around it. By itself it shows no more than a scheme
// and a host when it is printed or logged. But package fmt, printing another struct,
// asks no unexported field how to be shown: for that case keep the password out of
// the URL.
type Config struct {
	// URL is what [Open] takes. What other fields say may be left out of it, and must
	// not be said twice.
	URL string `json:"url,omitempty" yaml:"url,omitempty"`

	// User and Password are those that a URL has before its host. A nil Password is
	// none, and not the same as an empty one. JSON cannot hold one that is not UTF-8,
	// but the URL can.
	User     string  `json:"user,omitempty" yaml:"user,omitempty"`
	Password *string `json:"password,omitempty" yaml:"password,omitempty"`

	// TTL, Owner, TokenBase and Require are the query keys that all backends share: see
	// [lock.Open]. Require has the names of features, as in [fencing, leased].
	TTL       Duration   `json:"ttl,omitempty" yaml:"ttl,omitempty"`
	Owner     string     `json:"owner,omitempty" yaml:"owner,omitempty"`
	TokenBase lock.Token `json:"token_base,omitempty" yaml:"token_base,omitempty"`
	Require   []string   `json:"require,omitempty" yaml:"require,omitempty"`

	// Options are the query keys of the backend itself, such as prefix.
	Options map[string]string `json:"options,omitempty" yaml:"options,omitempty"`
}

// Open opens the Locker that c describes, as [Open] does for the URL that says the
// same. Errors match [lock.ErrInvalid] if c is wrong, and show neither its password
// nor any part of its URL that could be a secret.
func (c Config) Open(ctx context.Context, configure ...func(*lock.Config)) (lock.Locker, error) {
	rawURL, err := c.joined()
	if err != nil {
		return nil, fmt.Errorf("holdfast: open: %w", err)
	}
	return Open(ctx, rawURL, configure...)
}

// joined returns the URL that says all that c says. It works on the text, so that
// what is in the URL is read, and refused, as it would be alone.
func (c Config) joined() (string, error) {
	rest, fragment, _ := strings.Cut(c.URL, "#")
	base, query, _ := strings.Cut(rest, "?")
	joined, err := c.withLogin(base)
	if err != nil {
		return "", err
	}
	query, err = c.withFields(query)
	if err != nil {
		return "", err
	}
	if query != "" {
		joined += "?" + query
	}
	if fragment != "" {
		joined += "#" + fragment
	}
	return joined, nil
}

// withLogin puts user and password before the host of a URL without a query.
func (c Config) withLogin(base string) (string, error) {
	if c.User == "" && c.Password == nil {
		return base, nil
	}
	scheme, rest, _ := strings.Cut(base, ":")
	rest, ok := strings.CutPrefix(rest, "//")
	if !ok {
		return "", fmt.Errorf("%w: user and password are given, but the URL has no // after a scheme; "+
			"write it as in redis://localhost:6379, or leave them out", lock.ErrInvalid)
	}
	if host, _, _ := strings.Cut(rest, "/"); strings.Contains(host, "@") {
		return "", fmt.Errorf("%w: user or password are given in the URL and in fields; "+
			"give both in the fields, with no percent-encoding", lock.ErrInvalid)
	}
	login := url.User(c.User)
	if c.Password != nil {
		login = url.UserPassword(c.User, *c.Password)
	}
	return scheme + "://" + login.String() + "@" + rest, nil
}

// withFields adds to the query of the URL what the fields say.
func (c Config) withFields(query string) (string, error) {
	fields, err := c.fields()
	if err != nil {
		return "", err
	}
	inURL, _ := url.ParseQuery(query) // lock.Open refuses what does not parse
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if inURL.Has(key) {
			return "", fmt.Errorf("%w: %q is given in the query of the URL and in a field; give it once", lock.ErrInvalid, key)
		}
	}
	return strings.Trim(query+"&"+fields.Encode(), "&"), nil
}

// fields returns what c says outside its URL, as a query.
func (c Config) fields() (url.Values, error) {
	q := make(url.Values)
	for _, key := range slices.Sorted(maps.Keys(c.Options)) {
		if slices.Contains([]string{"ttl", "owner", "token_base", "require"}, key) {
			return nil, fmt.Errorf("%w: %q is given among the options; give it in the field of that name", lock.ErrInvalid, key)
		}
		q.Set(key, c.Options[key])
	}
	if c.TTL != 0 {
		q.Set("ttl", time.Duration(c.TTL).String())
	}
	if c.Owner != "" {
		q.Set("owner", c.Owner)
	}
	if c.TokenBase != 0 {
		q.Set("token_base", strconv.FormatUint(uint64(c.TokenBase), 10))
	}
	if len(c.Require) > 0 {
		q.Set("require", strings.Join(c.Require, ","))
	}
	return q, nil
}

// String returns the scheme of the URL and its host, as far as they are certain to
// hold no secret: of a password that was not percent-encoded, a piece can be anywhere.
func (c Config) String() string {
	shown := ""
	u, err := url.Parse(c.URL)
	if err == nil && slices.Contains(lock.Schemes(), u.Scheme) {
		shown = u.Scheme + ":"
		if u.Hostname() != "" && !strings.Contains(c.URL, "@") {
			shown += "//" + u.Host
		}
	}
	return "backends.Config(" + shown + ")"
}

// Format writes [Config.String] for every verb of package fmt.
func (c Config) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, c.String()) }

// LogValue returns [Config.String] for package log/slog.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }

// Duration is a [time.Duration] that files write as URLs do: "15s".
type Duration time.Duration

// MarshalText returns d as [time.Duration.String] does.
func (d Duration) MarshalText() ([]byte, error) {
	return []byte(time.Duration(d).String()), nil
}

// UnmarshalText reads what [time.ParseDuration] does. Zero is refused, as in a URL:
// who wants the default leaves the field out. The error matches [lock.ErrInvalid].
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	if err != nil || parsed <= 0 {
		return fmt.Errorf("holdfast: %w: ttl=%q is not a duration above zero, as in 15s", lock.ErrInvalid, text)
	}
	*d = Duration(parsed)
	return nil
}
