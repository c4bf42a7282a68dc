package lock_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// servers are the backends on a server, and the module of each one's SDK.
var servers = map[string]string{
	"etcdlock":  "go.etcd.io/etcd",
	"pglock":    "github.com/jackc/pgx",
	"redislock": "github.com/redis/go-redis",
	"zklock":    "github.com/go-zookeeper/zk",
}

// indirect are modules that the SDKs bring along, and cobra.
var indirect = []string{
	"golang.org/x/",
	"github.com/cespare/xxhash", "go.uber.org/atomic", // go-redis
	"github.com/jackc/",                                                                                                    // pgx
	"github.com/coreos/", "github.com/golang/protobuf", "github.com/grpc-ecosystem/", "go.uber.org/", "google.golang.org/", // etcd
	"github.com/inconshreveable/mousetrap", "github.com/cpuguy83/go-md2man", "github.com/russross/blackfriday", "go.yaml.in/yaml", // cobra
}

// allowed returns, for each package, those of this module, and modules of others, that it
// may import, directly or not. Every import points down.
func allowed() map[string][]string {
	engine := []string{"lock", "lock/driver"}
	may := map[string][]string{
		"lock":                  {},
		"lock/driver":           {"lock"},
		"lock/memlock":          engine,
		"lock/filelock":         engine,
		"conformance":           {"lock"},
		"conformance/torture":   {"lock", "conformance", "github.com/anishathalye/porcupine"},
		"internal/mutate":       {},
		"internal/process":      {},
		"internal/throughproxy": {"lock", "conformance"},
		"internal/otherprocess": {"lock", "internal/process"},
		"internal/testserver":   {"internal/process"},
	}
	all := append(slices.Clone(engine), "lock/memlock", "lock/filelock")
	for backend, sdk := range servers {
		may[backend] = append(slices.Clone(engine), sdk)
		all = append(all, backend, sdk)
	}
	may["backends"] = all
	may["cmd/holdfast"] = append(slices.Clone(all), "backends", "github.com/spf13")
	return may
}

func TestImportsPointDown(t *testing.T) {
	const module = "github.com/holdfast-go/holdfast/"
	for pkg, may := range allowed() {
		out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", module+pkg).Output()
		if err != nil {
			t.Errorf("%s: %v", pkg, err)
			continue
		}
		for dep := range strings.FieldsSeq(string(out)) {
			own, isOwn := strings.CutPrefix(dep, module)
			switch {
			case own == pkg, isOwn && slices.Contains(may, own):
			case !isOwn && slices.ContainsFunc(may, func(m string) bool { return strings.HasPrefix(dep, m) }):
			case !isOwn && len(may) > 2 && slices.ContainsFunc(indirect, func(m string) bool { return strings.HasPrefix(dep, m) }):
			default:
				t.Errorf("%s must not depend on %s", pkg, dep)
			}
		}
	}
}
