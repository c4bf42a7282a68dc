package lock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// OpenFunc opens a Locker for the URL of a scheme that was registered. The query
// keys common to all backends are already in cfg, and gone from u. If the URL names
// several hosts, u.Host is the list of them, with commas between them: split it before
// ports are looked for.
type OpenFunc func(ctx context.Context, u *url.URL, cfg Config) (Locker, error)

var registry = struct {
	sync.RWMutex
	open map[string]OpenFunc
}{open: make(map[string]OpenFunc)}

// known maps the schemes of this module to the package that registers them, for
// the error that says what to import.
var known = map[string]string{
	"mem":            "lock/memlock",
	"file":           "lock/filelock",
	"redis":          "redislock",
	"rediss":         "redislock",
	"redis+sentinel": "redislock",
	"redis+cluster":  "redislock",
	"redis+quorum":   "redislock",
	"postgres":       "pglock",
	"postgresql":     "pglock",
	"etcd":           "etcdlock",
	"etcds":          "etcdlock",
	"zk":             "zklock",
}

// Register makes a backend available to [Open] under scheme. Backends call it
// when they are imported. It panics if open is nil, scheme is not in lower case,
// or scheme is taken.
func Register(scheme string, open OpenFunc) {
	registry.Lock()
	defer registry.Unlock()
	if open == nil {
		panic("holdfast: Register: open is nil for scheme " + strconv.Quote(scheme))
	}
	if scheme == "" || scheme != strings.ToLower(scheme) {
		panic("holdfast: Register: not a scheme in lower case: " + strconv.Quote(scheme))
	}
	if _, taken := registry.open[scheme]; taken {
		panic("holdfast: Register: called twice for scheme " + strconv.Quote(scheme))
	}
	registry.open[scheme] = open
}

// Schemes returns the registered schemes in order.
func Schemes() []string {
	registry.RLock()
	defer registry.RUnlock()
	return slices.Sorted(maps.Keys(registry.open))
}

// Open opens the Locker that rawURL names. Its backend must have been imported,
// as with database/sql:
//
//	import _ "github.com/holdfast-go/holdfast/redislock"
//
// All backends share the query keys ttl ("15s"), owner, token_base and require
// ("fencing,leased": an error if the backend does not promise them). The rest of
// the URL belongs to the backend. An unknown or repeated query key is an error.
// Where a backend takes several hosts they have commas between them, each with a
// port or without, and IPv6 addresses in brackets: etcd://one:2379,two,[::1]:2379/prefix.
//
// What a URL cannot say, such as [Config.Observe], configure adds to what it says:
//
//	lock.Open(ctx, rawURL, func(c *lock.Config) { c.Observe = count })
//
// Errors match [ErrInvalid] if the URL is wrong, and never show any part of it
// that could be a secret.
func Open(ctx context.Context, rawURL string, configure ...func(*Config)) (Locker, error) {
	l, err := open(ctx, rawURL, configure)
	if err != nil {
		return nil, fmt.Errorf("holdfast: open: %w", err)
	}
	return l, nil
}

func open(ctx context.Context, rawURL string, configure []func(*Config)) (Locker, error) {
	scheme, err := schemeOf(rawURL)
	if err != nil {
		return nil, err
	}
	openFunc, err := lookup(scheme)
	if err != nil {
		return nil, err
	}
	// The error of url.Parse quotes what it could not read, which may be the
	// password: it is not wrapped.
	u, err := parse(rawURL)
	if errors.Is(err, errAt) {
		return nil, fmt.Errorf("%w: the %s URL has an @ after its hosts; percent-encode it there, as %%40, "+
			"and special characters in user and password", ErrInvalid, scheme)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the %s URL does not parse; percent-encode special characters in user, password and path",
			ErrInvalid, scheme)
	}
	cfg, want, err := takeCommon(u)
	if err != nil {
		return nil, err
	}
	for _, c := range configure {
		c(&cfg)
	}
	l, err := openFunc(ctx, u, cfg)
	if err != nil {
		return nil, err
	}
	if err := Require(l, want); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func schemeOf(rawURL string) (string, error) {
	scheme, rest, ok := strings.Cut(rawURL, ":")
	userFirst := !strings.HasPrefix(rest, "//") && strings.Contains(rest, "@") // user:password@host
	if !ok || scheme == "" || userFirst || strings.ContainsFunc(scheme, notSchemeChar) {
		return "", fmt.Errorf("%w: the URL has no scheme; write it as in redis://localhost:6379", ErrInvalid)
	}
	return strings.ToLower(scheme), nil
}

func notSchemeChar(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("+-.", r)
}

var errAt = errors.New("an @ after the hosts")

// parse is url.Parse for several hosts, too, with commas between them. Of such a list that takes
// all for one, which has a port at its end at most, and no brackets.
func parse(rawURL string) (*url.URL, error) {
	before, list, after := cutHosts(rawURL)
	if !strings.Contains(list, ",") {
		return url.Parse(rawURL)
	}
	if strings.Contains(after, "@") { // the list may be the first piece of a password
		return nil, errAt
	}
	u, err := url.Parse(before + "hosts" + after)
	if err != nil {
		return nil, err
	}
	hosts := strings.Split(list, ",")
	for i, host := range hosts {
		one, err := url.Parse("//" + host)
		if err != nil {
			return nil, err
		}
		hosts[i] = one.Host
	}
	u.Host = strings.Join(hosts, ",")
	return u, nil
}

// cutHosts takes a URL apart: what is between // or the login's @ and the path.
func cutHosts(rawURL string) (before, hosts, after string) {
	scheme, rest, ok := strings.Cut(rawURL, "://")
	if !ok {
		return rawURL, "", ""
	}
	end := strings.IndexAny(rest, "/?#")
	if end < 0 {
		end = len(rest)
	}
	begin := strings.LastIndex(rest[:end], "@") + 1
	return scheme + "://" + rest[:begin], rest[begin:end], rest[end:]
}

func lookup(scheme string) (OpenFunc, error) {
	registry.RLock()
	f, ok := registry.open[scheme]
	registry.RUnlock()
	if ok {
		return f, nil
	}
	have := "none"
	if s := Schemes(); len(s) > 0 {
		have = strings.Join(s, ", ")
	}
	if pkg, ok := known[scheme]; ok {
		return nil, fmt.Errorf("%w: scheme %q is not registered (registered: %s); add import _ %q",
			ErrInvalid, scheme, have, "github.com/holdfast-go/holdfast/"+pkg)
	}
	return nil, fmt.Errorf("%w: unknown scheme %q (registered: %s); import the package of its backend", ErrInvalid, scheme, have)
}

// takeCommon reads the query keys that all backends share and removes them from u.
func takeCommon(u *url.URL) (cfg Config, want Features, err error) {
	// In a password that holds a question mark and was not percent-encoded, the rest of
	// it stands in the query, before an @: it must not be quoted.
	if strings.Contains(u.RawQuery, "@") {
		return cfg, 0, fmt.Errorf("%w: the %s URL has an @ in its query; percent-encode it there, as %%40, "+
			"and special characters in user and password", ErrInvalid, u.Scheme)
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return cfg, 0, fmt.Errorf("%w: the query of the %s URL does not parse; percent-encode special characters", ErrInvalid, u.Scheme)
	}
	readers := map[string]func(string) error{
		"ttl":        func(v string) error { return readTTL(v, &cfg.TTL) },
		"owner":      func(v string) error { cfg.Owner = v; return nil },
		"token_base": func(v string) error { return readToken(v, &cfg.TokenBase) },
		"require": func(v string) (err error) {
			want, err = ParseFeatures(v)
			return err
		},
	}
	for key, values := range q {
		if len(values) > 1 {
			return cfg, 0, fmt.Errorf("%w: query key %q is given %d times; give it once", ErrInvalid, key, len(values))
		}
		read, ok := readers[key]
		if !ok {
			continue
		}
		if err := read(values[0]); err != nil {
			return cfg, 0, err
		}
		q.Del(key)
	}
	u.RawQuery = q.Encode()
	return cfg, want, nil
}

// readTTL reads a duration. Zero is refused here, although Config takes it for
// the default: whoever writes ttl=0 means something else by it.
func readTTL(v string, ttl *time.Duration) error {
	d, err := time.ParseDuration(v)
	if err != nil || d <= 0 {
		return fmt.Errorf("%w: ttl=%q is not a duration above zero, as in 15s", ErrInvalid, v)
	}
	*ttl = d
	return nil
}

func readToken(v string, t *Token) error {
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: token_base=%q is not a whole number", ErrInvalid, v)
	}
	*t = Token(n)
	return nil
}
