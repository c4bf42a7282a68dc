package zklock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/zklock"
)

// What is wrong is told before anything is sent, and no error shows a password.
func TestBadURLs(t *testing.T) {
	const secret = "hunter2"
	for _, url := range []string{
		"zk:localhost", "zk:///#x", "zk://h1,,h2/x", "zk://h:/x", "zk://h1:1,h2:/x", "zk://user@h/x", "zk://:" + secret + "@h/x",
		"zk://a%3Ab:" + secret + "@h/x", "zk://h/x?tick=-1s", "zk://h/x?tick=soon", "zk://h/x?tick=1s&tick=2s", "zk://h/x?colour=red",
		"zk://h/x//y", "zk://h/x/../y", "zk://h/./x", "zk://h/zookeeper", "zk://h/zookeeper/x", "zk://h/x%00y", "zk://h/x%EF%80%80",
		"zk://h/x?ttl=1.5ms", "zk://h/x?ttl=100500us", "zk://h/x?ttl=600h", "zk://h/x?ttl=4s&tick=3s",
		"zk://user:" + secret + "?@h/x", "zk://user:" + secret + "/@h/x",
	} {
		l, err := lock.Open(t.Context(), url)
		if err == nil {
			_ = l.Close()
		}
		if !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", url, err)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
}

func TestBadConfigs(t *testing.T) {
	for name, test := range map[string]struct {
		servers []string
		cfg     zklock.Config
	}{
		"no servers":     {nil, zklock.Config{}},
		"an empty one":   {[]string{"h", ""}, zklock.Config{}},
		"a port alone":   {[]string{":2181"}, zklock.Config{}},
		"negative tick":  {[]string{"h"}, zklock.Config{Tick: -1}},
		"a long tick":    {[]string{"h"}, zklock.Config{Tick: 8 * time.Second}},
		"a relative":     {[]string{"h"}, zklock.Config{Root: "x"}},
		"a slash":        {[]string{"h"}, zklock.Config{Root: "/"}},
		"a slash at end": {[]string{"h"}, zklock.Config{Root: "/x/"}},
		"microseconds":   {[]string{"h"}, zklock.Config{Config: lock.Config{TTL: 4*time.Second + 1}}},
		"a month":        {[]string{"h"}, zklock.Config{Config: lock.Config{TTL: 30 * 24 * time.Hour}}},
	} {
		l, err := zklock.New(test.servers, test.cfg)
		if err == nil {
			_ = l.Close()
		}
		if !errors.Is(err, lock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	// A Locker that was never used asks nobody, and closes at once.
	for _, servers := range [][]string{{"h"}, {"h:1", "[::1]:2", "[::1]", "::1"}} {
		l, err := zklock.New(servers, zklock.Config{})
		if err != nil {
			t.Errorf("%q: %v", servers, err)
			continue
		}
		if l.Features() != lock.Fencing|lock.FIFO|lock.SharedMode|lock.Leased {
			t.Errorf("features are %v", l.Features())
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		_, err = l.Acquire(context.Background(), "k")
		matches(t, "Acquire", err, lock.ErrClosed)
	}
}
