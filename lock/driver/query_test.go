package driver_test

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/driver"
)

func TestQuery(t *testing.T) {
	q := query(t, "s=a+b&d=1.5s&n=7&b=true")
	if s := q.String("s", ""); s != "a b" {
		t.Errorf("String = %q", s)
	}
	if d := q.Duration("d", 0); d != 1500*time.Millisecond {
		t.Errorf("Duration = %v", d)
	}
	if n := q.Int("n", 0); n != 7 {
		t.Errorf("Int = %d", n)
	}
	if !q.Bool("b", false) {
		t.Error("Bool = false")
	}
	if s, d, n, b := q.String("x1", "def"), q.Duration("x2", time.Hour), q.Int("x3", 3), q.Bool("x4", true); s != "def" || d != time.Hour || n != 3 || !b {
		t.Errorf("defaults: %q, %v, %d, %v", s, d, n, b)
	}
	if err := q.Err(); err != nil {
		t.Error(err)
	}
}

func TestQueryErrors(t *testing.T) {
	for raw, want := range map[string]string{
		"d=5": "d=", "d=-1s": "d=", "n=-1": "n=", "n=x": "n=", "n=99999999999": "n=", "b=maybe": "b=",
		"d=1s&d=2s": "once", "colour=red": `"colour" (known: ttl, owner, token_base, require, d, n, b)`, "d=%zz": "parse",
	} {
		q := query(t, raw)
		q.Duration("d", 0)
		q.Int("n", 0)
		q.Bool("b", false)
		if err := q.Err(); !errors.Is(err, lock.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want ErrInvalid with %q", raw, err, want)
		}
	}
}

func query(t *testing.T, raw string) *driver.Query {
	u, err := url.Parse("x:")
	if err != nil {
		t.Fatal(err)
	}
	u.RawQuery = raw
	return driver.NewQuery(u)
}
