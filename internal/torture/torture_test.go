package torture_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	torture.Main()
	code := m.Run()
	testserver.RemoveClusters()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := writeReport(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// quiet drops what go-redis says of servers that were taken away, and mute what package zk does.
type (
	quiet struct{}
	mute  struct{}
)

func (quiet) Printf(context.Context, string, ...any) {}
func (mute) Printf(string, ...any)                   {}

// backend is one that is tortured.
type backend struct {
	name    string
	harness func(*testing.T) *torture.Harness
	share   int // of the time of a long run: rounds with a server are longer, and it has more faults
}

// backends are those of a run that has time for one round of each only, in the order of
// the report.
var backends = []backend{
	{"MemorySessions", memSessions, 1},
	{"MemoryOwnLeases", memOwnLeases, 1},
	{"File", files, 1},
	{"Redis", redisServer, 2},
}

// more are those of a longer run, besides.
var more = []backend{
	{"PostgreSQL", postgresServer, 2},
	{"etcd", etcdServer, 2},
	{"ZooKeeper", zookeeperServer, 2},
}

// TestTorture tortures some backends for one round each, or all for their parts of the time
// that TORTURE gives. TORTURE_SEED, TORTURE_ROUND and TORTURE_FAULT make one round again.
func TestTorture(t *testing.T) {
	total := fromEnv(t, "TORTURE", time.ParseDuration, "30m")
	backends := backends
	if total > 0 {
		backends = append(slices.Clone(backends), more...)
	}
	number := func(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }
	options := torture.Options{
		Seed:  fromEnv(t, "TORTURE_SEED", number, "7"),
		Round: fromEnv(t, "TORTURE_ROUND", strconv.Atoi, "3"),
		Only:  os.Getenv("TORTURE_FAULT"),
		First: os.Getenv("TORTURE_FIRST") != "",
	}
	shares := 0
	for _, b := range backends {
		shares += b.share
	}
	for _, b := range backends {
		options.Time = total * time.Duration(b.share) / time.Duration(shares)
		t.Run(b.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("one round again: TORTURE_SEED=… TORTURE_ROUND=… go test -count 1 -run '^%s$' -artifacts ./internal/torture", t.Name())
				}
			})
			results = append(results, torture.Run(t, b.harness(t), options))
		})
	}
}

// results are what the report is made of.
var results []*torture.Result

// fromEnv reads a variable, or returns the zero value.
func fromEnv[T any](t *testing.T, variable string, parse func(string) (T, error), example string) (v T) {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return v
	}
	v, err := parse(text)
	if err != nil {
		t.Fatalf("%s=%q cannot be read; write it as in %s", variable, text, example)
	}
	return v
}
