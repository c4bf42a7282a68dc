package lock_test

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// opened is what the scheme "probe" was opened with last.
var opened struct {
	url *url.URL
	cfg lock.Config
}

func init() {
	lock.Register("probe", func(_ context.Context, u *url.URL, cfg lock.Config) (lock.Locker, error) {
		opened.url, opened.cfg = u, cfg
		return memlock.NewServer(memlock.OwnLeases()).Locker(cfg)
	})
}

func TestOpen(t *testing.T) {
	l, err := lock.Open(t.Context(), "probe://user:secret@host/path?ttl=3s&owner=me&token_base=9&require=fencing,leased&x=1")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := opened.cfg
	if cfg.TTL != 3*time.Second || cfg.Owner != "me" || cfg.TokenBase != 9 {
		t.Errorf("the common query keys give %+v", cfg)
	}
	if got := opened.url.RawQuery; got != "x=1" {
		t.Errorf("the backend is left with the query %q, want x=1", got)
	}
}

// TestOpenHosts: each of several hosts is as one alone would be.
func TestOpenHosts(t *testing.T) {
	for hosts, want := range map[string]string{
		"h1,h2":                        "h1,h2",
		"h1:1,h2:2":                    "h1:1,h2:2",
		"h1:1,h2":                      "h1:1,h2",
		"h1,h2:2":                      "h1,h2:2",
		"[::1]:1,[::2]:2":              "[::1]:1,[::2]:2",
		"[::1],h2,127.0.0.1:3":         "[::1],h2,127.0.0.1:3",
		"h1:1,[fe80::1%25eth0]:2":      "h1:1,[fe80::1%eth0]:2",
		"h1,,h2":                       "h1,,h2", // for the backend to refuse
		"[::1]:1":                      "[::1]:1",
		"user:pa%2Css%40@h1:1,[::1]:2": "h1:1,[::1]:2",
		"user:pa,ss@h1:1,[::1]:2":      "h1:1,[::1]:2",
	} {
		for _, path := range []string{"", "/", "/path,x"} {
			l, err := lock.Open(t.Context(), "probe://"+hosts+path+"?x=y")
			if err != nil {
				t.Errorf("%s: %v", hosts, err)
				continue
			}
			_ = l.Close()
			got := opened.url
			if got.Host != want || got.Path != path || got.RawQuery != "x=y" {
				t.Errorf("%s%s: the backend is given the hosts %q, the path %q and the query %q", hosts, path, got.Host, got.Path, got.RawQuery)
			}
			if (got.User != nil) != strings.Contains(hosts, "@") {
				t.Errorf("%s: the backend is given the user %v", hosts, got.User)
			}
		}
	}
}

// TestOpenConfigure: what a URL cannot say is added to what it says.
func TestOpenConfigure(t *testing.T) {
	seen := make(chan lock.EventKind, 8)
	observe := func(c *lock.Config) {
		c.Observe = func(_ context.Context, e lock.Event) { seen <- e.Kind }
	}
	shorter := func(c *lock.Config) { c.TTL /= 3 }
	l, err := lock.Open(t.Context(), "probe:x?ttl=3s&owner=me", observe, shorter)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if cfg := opened.cfg; cfg.TTL != time.Second || cfg.Owner != "me" {
		t.Errorf("the backend got %+v", cfg)
	}
	h, err := l.TryAcquire(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []lock.EventKind{lock.Acquired, lock.Released} {
		if got := <-seen; got != want {
			t.Errorf("observed %v, want %v", got, want)
		}
	}
}

func TestOpenBadInput(t *testing.T) {
	const secret = "hunter2"
	for name, c := range map[string]struct{ url, want string }{
		"empty":              {"", "no scheme"},
		"no scheme":          {"localhost", "no scheme"},
		"unknown scheme":     {"gopher://u:" + secret + "@h", `unknown scheme "gopher"`},
		"not imported":       {"zk://u:" + secret + "@h/", "holdfast/zklock"},
		"lists schemes":      {"gopher://h", "mem, probe"},
		"bad port":           {"probe://u:" + secret + "@h:port/", "does not parse"},
		"bad user":           {"probe://u:" + secret + "#@h/%zz", "does not parse"},
		"bad host":           {"probe://u:" + secret + "@[::1/", "does not parse"},
		"bad port of many":   {"probe://u:" + secret + "@h1:port,h2:1/", "does not parse"},
		"bad host of many":   {"probe://u:" + secret + "@h1,[::1,h2/", "does not parse"},
		"password with , /":  {"probe://u:12,x/" + secret + "@h/", "%40"},
		"path with @":        {"probe://h1,h2/" + secret + "@x", "%40"},
		"password with %":    {"probe://u:%" + secret + "@h/", "percent-encode"},
		"control character":  {"probe://u:" + secret + "\x7f@h/", "does not parse"},
		"bad query":          {"probe://u:" + secret + "@h/?a=%zz&b=" + secret, "query"},
		"negative ttl":       {"probe://u:" + secret + "@h/?ttl=-1s", "ttl"},
		"zero ttl":           {"probe://u:" + secret + "@h/?ttl=0s", "ttl"},
		"ttl without unit":   {"probe://u:" + secret + "@h/?ttl=15", "15s"},
		"tiny ttl":           {"probe://u:" + secret + "@h/?ttl=1ms", "ttl"},
		"repeated key":       {"probe://u:" + secret + "@h/?ttl=1s&ttl=2s", "once"},
		"bad token base":     {"probe://u:" + secret + "@h/?token_base=-1", "token_base"},
		"password with ?":    {"probe://u:12?token_base=" + secret + "@h/", "%40"},
		"password with ?=":   {"probe://u:12?" + secret + "=x@h/", "%40"},
		"no scheme, user":    {secret + ":pa@x", "no scheme"},
		"unknown feature":    {"probe://u:" + secret + "@h/?require=magic", "magic"},
		"unknown key of mem": {"mem:x?colour=red", `"colour"`},
		"host in mem":        {"mem://host/x", "mem:name"},
	} {
		l, err := lock.Open(t.Context(), c.url)
		if err == nil {
			_ = l.Close()
		}
		if !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want ErrInvalid with %q", name, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the password: %v", name, err)
		}
	}
}

func TestOpenRequire(t *testing.T) {
	if _, err := lock.Open(t.Context(), "probe:x?require=fifo"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v, want ErrUnsupported", err)
	}
}

func TestOpenSharesMemoryByName(t *testing.T) {
	var lockers []lock.Locker
	for _, u := range []string{"mem:one", "MEM:one", "mem:two"} {
		l, err := lock.Open(t.Context(), u)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		lockers = append(lockers, l)
	}
	if _, err := lockers[0].TryAcquire(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	if _, err := lockers[1].TryAcquire(t.Context(), "k"); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("by the same name: %v, want ErrHeld", err)
	}
	if _, err := lockers[2].TryAcquire(t.Context(), "k"); err != nil {
		t.Errorf("by another name: %v", err)
	}
}

func TestSchemes(t *testing.T) {
	if got := lock.Schemes(); !slices.Equal(got, []string{"mem", "probe"}) {
		t.Errorf("Schemes() = %q", got)
	}
}

func TestRegisterPanics(t *testing.T) {
	open := func(context.Context, *url.URL, lock.Config) (lock.Locker, error) { return nil, errors.ErrUnsupported }
	for name, register := range map[string]func(){
		"nil": func() { lock.Register("new", nil) }, "taken": func() { lock.Register("probe", open) },
		"upper case": func() { lock.Register("New", open) }, "empty": func() { lock.Register("", open) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			register()
		}()
	}
}
