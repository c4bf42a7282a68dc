package backends_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.yaml.in/yaml/v3"

	"github.com/holdfast-go/holdfast/backends"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/memlock"
)

// opened is what a backend was opened with: the scheme "probe" keeps the last.
type opened struct {
	url string
	cfg lock.Config
}

var probed opened

func init() {
	lock.Register("probe", func(_ context.Context, u *url.URL, cfg lock.Config) (lock.Locker, error) {
		probed = opened{u.String(), cfg}
		return memlock.NewServer().Locker(cfg)
	})
}

// probe returns what open opens, and the text of its error.
func probe(t *testing.T, open func() (lock.Locker, error)) (opened, string) {
	t.Helper()
	probed = opened{}
	l, err := open()
	if err != nil {
		return opened{}, err.Error()
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	return probed, ""
}

// files reads a Config from both kinds of file, as strictly as their packages can.
var files = map[string]struct {
	write func(any) ([]byte, error)
	read  func([]byte, *backends.Config) error
}{
	"JSON": {json.Marshal, func(text []byte, c *backends.Config) error {
		d := json.NewDecoder(bytes.NewReader(text))
		d.DisallowUnknownFields()
		return d.Decode(c)
	}},
	"YAML": {yaml.Marshal, func(text []byte, c *backends.Config) error {
		d := yaml.NewDecoder(bytes.NewReader(text))
		d.KnownFields(true)
		return d.Decode(c)
	}},
}

// ascii is every printable character of ASCII.
var ascii = func() string {
	var b strings.Builder
	for c := rune(0x20); c < 0x7f; c++ {
		b.WriteRune(c)
	}
	return b.String()
}()

func TestConfigSaysWhatURLsSay(t *testing.T) {
	type fields = map[string]any
	for _, test := range []struct {
		file fields
		url  string
	}{
		{fields{"url": "probe://h"}, "probe://h"},
		{fields{"url": "PROBE://h"}, "probe://h"},
		{fields{"url": "probe:name", "owner": "me"}, "probe:name?owner=me"},
		{fields{"url": "probe:///dir/a%20b", "options": fields{"x": "1"}}, "probe:///dir/a%20b?x=1"},
		{fields{"url": "probe://h/p?", "ttl": "2s"}, "probe://h/p?ttl=2s"},
		{fields{"url": "probe://h/p?x=1&", "ttl": "2s"}, "probe://h/p?x=1&ttl=2s"},
		{fields{"url": "probe://h/p?x=1&ttl=2s", "options": fields{"y": "2"}}, "probe://h/p?x=1&ttl=2s&y=2"},
		{fields{"url": "probe://h/p?x=1#f", "owner": "me", "user": "u", "password": "p"}, "probe://u:p@h/p?x=1&owner=me#f"},
		{fields{"url": "probe://h", "ttl": "1m30s"}, "probe://h?ttl=90s"},
		{fields{"url": "probe://h", "ttl": "1500.25ms"}, "probe://h?ttl=1500250us"},
		{fields{"url": "probe://h", "owner": "a&b=c d+e#f?%41/@:;é"}, "probe://h?owner=a%26b%3Dc+d%2Be%23f%3F%2541%2F%40%3A%3B%C3%A9"},
		{fields{"url": "probe://h", "token_base": lock.MaxTokenBase}, "probe://h?token_base=4611686018427387904"},
		{fields{"url": "probe://h", "token_base": 0, "owner": "", "user": "", "require": []string{}}, "probe://h"},
		{fields{"url": "probe://h", "ttl": nil, "password": nil, "options": nil}, "probe://h"},
		{fields{"url": "probe://h", "require": []string{"fencing", "leased"}}, "probe://h?require=fencing,leased"},
		{fields{"url": "probe://h", "require": []string{"fencing, leased"}}, "probe://h?require=fencing,leased"},
		{fields{"url": "probe://h", "options": fields{"a b": "&=", "": "x"}}, "probe://h?a+b=%26%3D&=x"},
		{fields{"url": "probe://h/p", "user": "u"}, "probe://u@h/p"},
		{fields{"url": "probe://h/p", "user": "u", "password": ""}, "probe://u:@h/p"},
		{fields{"url": "probe://h/p", "password": ""}, "probe://:@h/p"},
		{fields{"url": "probe://h/p", "password": "p:@/?#[]%41"}, "probe://:p%3A%40%2F%3F%23%5B%5D%2541@h/p"},
		{fields{"url": "probe://h/p@q", "user": "u@:/"}, "probe://u%40%3A%2F@h/p@q"},
		{fields{"url": "probe://", "user": "u"}, "probe://u@"},
		{fields{"url": "probe://[::1]", "user": "u", "password": "p"}, "probe://u:p@[::1]"},
		{fields{"url": "probe://[fe80::1%25eth0]:1/p", "password": "p", "ttl": "2s"}, "probe://:p@[fe80::1%25eth0]:1/p?ttl=2s"},
		{fields{"url": "probe://h1:1,h2:2/p", "user": "u", "password": "p"}, "probe://u:p@h1:1,h2:2/p"},
		{fields{"url": "probe://u:p%40@h", "owner": "me"}, "probe://u:p%40@h?owner=me"},

		// What is wrong is told as of a URL.
		{fields{"owner": "me"}, "?owner=me"},
		{fields{"url": "localhost", "owner": "probe:x@y"}, "localhost"},
		{fields{"url": "nosuch://h", "user": "u"}, "nosuch://u@h"},
		{fields{"url": "probe://h:port", "user": "u"}, "probe://u@h:port"},
		{fields{"url": "probe://h?x=%zz&owner=me", "ttl": "2s"}, "probe://h?x=%zz"},
		{fields{"url": "probe://h?x=1&x=2", "ttl": "2s"}, "probe://h?x=1&x=2"},
		{fields{"url": "probe://h?x=@", "ttl": "2s"}, "probe://h?x=@"},
		{fields{"url": "probe://h", "ttl": "1ms"}, "probe://h?ttl=1ms"},
		{fields{"url": "probe://h", "owner": strings.Repeat("x", 257)}, "probe://h?owner=" + strings.Repeat("x", 257)},
		{fields{"url": "probe://h", "owner": "a\nb"}, "probe://h?owner=a%0Ab"},
		{fields{"url": "probe://h", "token_base": lock.MaxTokenBase + 1}, "probe://h?token_base=4611686018427387905"},
		{fields{"url": "probe://h", "require": []string{"magic"}}, "probe://h?require=magic"},
		{fields{"url": "probe://h", "require": []string{""}}, "probe://h?require="},
		{fields{"url": "mem:x", "require": []string{"leased"}, "options": fields{"colour": "red"}}, "mem:x?colour=red"},
		{fields{"url": "mem://", "user": "u"}, "mem://u@"},
		{fields{"url": "redis://h", "user": "u"}, "redis://u@h"},
		{fields{"url": "redis://h", "user": "u", "password": ""}, "redis://u:@h"},
	} {
		want, wantErr := probe(t, func() (lock.Locker, error) { return lock.Open(t.Context(), test.url) })
		for kind, f := range files {
			text, err := f.write(test.file)
			if err != nil {
				t.Fatal(err)
			}
			var c backends.Config
			if err := f.read(text, &c); err != nil {
				t.Errorf("%s %s: %v", kind, text, err)
				continue
			}
			got, gotErr := probe(t, func() (lock.Locker, error) { return c.Open(t.Context()) })
			if !reflect.DeepEqual(got, want) || gotErr != wantErr {
				t.Errorf("%s %s:\n got %+v %s\nwant %+v %s", kind, text, got, gotErr, want, wantErr)
			}
		}
	}
}

// Every error names what is wrong, and says what to do.
func TestConfigErrors(t *testing.T) {
	const secret = "hunter2"
	for name, test := range map[string]struct {
		c    backends.Config
		want []string
	}{
		"empty":             {backends.Config{}, []string{"no scheme", "redis://"}},
		"negative ttl":      {backends.Config{URL: "mem:x", TTL: -1}, []string{`ttl="-1ns"`, "15s"}},
		"tiny ttl":          {backends.Config{URL: "mem:x", TTL: 1}, []string{"ttl 1ns", "100ms"}},
		"ttl twice":         {backends.Config{URL: "mem:x?ttl=1s", TTL: 1e9}, []string{`"ttl"`, "once"}},
		"owner twice":       {backends.Config{URL: "mem:x?a=1&owner=a", Owner: "a"}, []string{`"owner"`, "once"}},
		"token base twice":  {backends.Config{URL: "mem:x?token_base=1", TokenBase: 1}, []string{`"token_base"`, "once"}},
		"require twice":     {backends.Config{URL: "mem:x?require=fifo", Require: []string{"fifo"}}, []string{`"require"`, "once"}},
		"option twice":      {backends.Config{URL: "mem:x?prefix=" + secret, Options: map[string]string{"prefix": secret}}, []string{`"prefix"`, "once"}},
		"encoded key twice": {backends.Config{URL: "mem:x?%74tl=1s", TTL: 1e9}, []string{`"ttl"`, "once"}},
		"option of a field": {backends.Config{URL: "mem:x", Options: map[string]string{"ttl": secret}}, []string{`"ttl"`, "field"}},
		"unknown option":    {backends.Config{URL: "redis://h", Options: map[string]string{"colour": secret}}, []string{`"colour"`, "ttl, owner, token_base, require, prefix"}},
		"no host":           {backends.Config{URL: "mem:x", Password: new(secret)}, []string{"user and password", "//", "leave them out"}},
		"no host, // later": {backends.Config{URL: "mem:a://" + secret, User: "u"}, []string{"user and password", "//"}},
		"no scheme":         {backends.Config{URL: "localhost", Password: new(secret)}, []string{"no //", "redis://"}},
		"user twice":        {backends.Config{URL: "redis://u:" + secret + "@h", User: "u"}, []string{"user or password", "in the fields"}},
		"user in the URL":   {backends.Config{URL: "redis://u@h", Password: new(secret)}, []string{"user or password", "in the fields"}},
		"unknown feature":   {backends.Config{URL: "redis://h", Password: new(secret), Require: []string{"fencing", "magic"}}, []string{`"magic"`, "known: fencing"}},
	} {
		l, err := test.c.Open(t.Context())
		if err == nil {
			_ = l.Close()
		}
		if !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", name, err)
			continue
		}
		for _, want := range append(test.want, "holdfast: open: ") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %q in it", name, err, want)
			}
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows a secret: %v", name, err)
		}
	}
}

func TestConfigFilesThatDoNotRead(t *testing.T) {
	for _, test := range []struct{ kind, text, want string }{
		{"JSON", `{"ttl": "0s"}`, `ttl="0s" is not a duration above zero, as in 15s`},
		{"YAML", `ttl: 0s`, `ttl="0s" is not a duration above zero, as in 15s`},
		{"YAML", `ttl: 0`, `ttl="0"`},
		{"YAML", `ttl: ""`, `ttl=""`},
		{"JSON", `{"ttl": ""}`, `ttl=""`},
		{"YAML", `ttl: 15`, `ttl="15"`},
		{"JSON", `{"ttl": "-1s"}`, `ttl="-1s"`},
		{"JSON", `{"ttl": 15}`, "ttl"},
		{"YAML", `tll: 15s`, "tll"},
		{"JSON", `{"token_base": -1}`, "token_base"},
		{"JSON", `{"token_base": 1.5}`, "token_base"},
		{"YAML", `token_base: -1`, "line 1"},
		{"YAML", `require: fencing`, "line 1"},
		{"YAML", "owner: a\nowner: b", "owner"},
	} {
		var c backends.Config
		err := files[test.kind].read([]byte(test.text), &c)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", test.text, err, test.want)
		}
		if strings.HasPrefix(test.want, "ttl=") && !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s: error %v, want ErrInvalid", test.text, err)
		}
	}
}

func TestConfigRoundTrip(t *testing.T) {
	full := backends.Config{
		URL: "probe://h/p?x=1", User: "u: #", Password: new(ascii + "é世\n"), TTL: backends.Duration(1500 * time.Millisecond),
		Owner: "- me: ~", TokenBase: lock.MaxTokenBase, Require: []string{"fencing", "leased"}, Options: map[string]string{"a": "true", "b": "012", "c": ""},
	}
	for kind, f := range files {
		for name, want := range map[string]backends.Config{"full": full, "empty": {}, "empty password": {Password: new("")}} {
			text, err := f.write(want)
			if err != nil {
				t.Fatal(err)
			}
			if n := bytes.Count(text, []byte(":")); name == "empty" && n != 0 {
				t.Errorf("%s: an empty Config is written as %s", kind, text)
			}
			var got backends.Config
			if err := f.read(text, &got); err != nil {
				t.Errorf("%s: %s: %v", kind, name, err)
			} else if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s: it comes back otherwise from\n%s", kind, name, text)
			}
		}
	}
}

func TestConfigDoesNotPrintSecrets(t *testing.T) {
	const secret = "s3cret"
	urls := map[string]string{
		"redis://db.example.com:6379/0?prefix=" + secret: "backends.Config(redis://db.example.com:6379)",
		"mem:" + secret:                            "backends.Config(mem:)",
		"":                                         "backends.Config()",
		secret:                                     "backends.Config()",
		"redis://app:" + secret + "@h/0":           "backends.Config(redis:)",
		"redis://app:p@" + secret + "@h/0":         "backends.Config(redis:)",
		"redis://app:p@" + secret:                  "backends.Config(redis:)",
		"redis://app:p@" + secret + "/x":           "backends.Config(redis:)",
		"redis://:" + secret:                       "backends.Config()",
		"redis://:12?" + secret:                    "backends.Config(redis:)",
		"redis://:12#" + secret + "@localhost/0":   "backends.Config(redis:)",
		"redis://:12/" + secret + "@localhost/0":   "backends.Config(redis:)",
		"redis://app:" + secret + "%zz@localhost/": "backends.Config()",
		"redis:" + secret + "@localhost":           "backends.Config(redis:)",
		secret + ":pa@x":                           "backends.Config()",
		secret + "://h":                            "backends.Config()",
	}
	for rawURL, want := range urls {
		c := backends.Config{URL: rawURL, User: "app", Password: new(secret), Options: map[string]string{"prefix": secret}}
		if got := c.String(); got != want {
			t.Errorf("%s: String() = %s, want %s", rawURL, got, want)
		}
		for how, text := range prints(t, c) {
			if strings.Contains(text, secret) {
				t.Errorf("%s: %s shows the secret: %s", rawURL, how, text)
			}
		}
		if !strings.Contains(rawURL, "@") { // it holds no password that anybody could tell
			continue
		}
		if _, err := c.Open(t.Context()); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the secret, or there is none: %v", rawURL, err)
		}
	}
	hidden := struct{ c backends.Config }{backends.Config{Password: new(secret)}}
	if text := fmt.Sprintf("%v %+v %#v", hidden, hidden, hidden); strings.Contains(text, secret) {
		t.Errorf("in an unexported field, the password shows: %s", text)
	}
}

// prints returns what there is to be seen of c.
func prints(t *testing.T, c backends.Config) map[string]string {
	t.Helper()
	texts := make(map[string]string)
	values := []any{c, &c, []backends.Config{c}, map[string]*backends.Config{"lock": &c}, struct{ Lock backends.Config }{c}}
	for _, value := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%20s"} {
			texts[fmt.Sprintf("%s of %T", verb, value)] = fmt.Sprintf(verb, value)
		}
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Info("opening", "config", value)
		texts[fmt.Sprintf("slog text of %T", value)] = b.String()
	}
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(&b, nil)).Info("opening", "config", c, "pointer", &c)
	texts["slog JSON"] = b.String()
	return texts
}

// The server takes no login but the one that was written, character by character.
func TestConfigPasswords(t *testing.T) {
	s := testserver.Redis(t)
	admin := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer admin.Close()
	if err := admin.Ping(t.Context()).Err(); err != nil { // before there is a password
		t.Fatal(err)
	}
	do := func(args ...any) {
		if err := admin.Do(t.Context(), args...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	passwords := []string{
		ascii, "p@ss:w/ord?#[]%25&=+ ;", "%", "%41", "%zz", "@", ":", "/", "?", "#", "über 世界 🔒", " x ", "x\n", "\x01\t\r\n",
		"null", "~", "true", "012", "1e3", "- a", "a: b", "'\"", "\\", "${HOME}", "\u2028\ufeff", "\x80\xff",
	}
	for _, password := range passwords {
		for _, user := range []string{"", "app:@/?#[]%&=+;"} {
			do("acl", "setuser", cmp.Or(user, "default"), "reset", "on", ">"+password, "~*", "+@all")
			c := backends.Config{URL: "redis://" + s.Addr() + "/0", User: user, Password: &password}
			openAll(t, c)

			c.Password = new(password + "x")
			_, err := c.Open(t.Context())
			if err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
				t.Errorf("user %q, wrong password: %v, want what the server says", user, err)
			} else if len(password) > 5 && strings.Contains(err.Error(), password) {
				t.Errorf("the error shows the password: %v", err)
			}
		}
	}
}

// openAll opens c as it is, and as it comes back from every kind of file that can hold it.
func openAll(t *testing.T, c backends.Config) {
	t.Helper()
	configs := map[string]backends.Config{"Go": c}
	for kind, f := range files {
		text, err := f.write(c)
		if err != nil {
			t.Fatal(err)
		}
		var read backends.Config
		if err := f.read(text, &read); err != nil {
			t.Errorf("%s: password %q: %v", kind, *c.Password, err)
			continue
		}
		if kind == "JSON" && strings.ToValidUTF8(*c.Password, "") != *c.Password {
			continue
		}
		configs[kind] = read
	}
	for kind, c := range configs {
		l, err := c.Open(t.Context())
		if err != nil {
			t.Errorf("%s: user %q, password %q: %v", kind, c.User, *c.Password, err)
			continue
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
