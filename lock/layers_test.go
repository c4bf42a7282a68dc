package lock_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// allowed are the packages of this module, and modules of others, that a package may
// import, directly or not. Every import points down.
var allowed = map[string][]string{
	"lock":                {},
	"lock/driver":         {"lock"},
	"lock/memlock":        {"lock", "lock/driver"},
	"lock/filelock":       {"lock", "lock/driver"},
	"conformance":         {"lock"},
	"redislock":           {"lock", "lock/driver", "github.com/redis/go-redis"},
	"backends":            {"lock", "lock/driver", "lock/filelock", "lock/memlock", "redislock", "github.com/redis/go-redis"},
	"cmd/holdfast":        {"lock", "lock/driver", "lock/filelock", "lock/memlock", "redislock", "backends", "github.com/redis/go-redis", "github.com/spf13"},
	"internal/testserver": {},
}

// indirect are modules that the SDKs above bring along.
var indirect = []string{"github.com/cespare/xxhash", "go.uber.org/atomic", "github.com/inconshreveable/mousetrap", "golang.org/x/"}

func TestImportsPointDown(t *testing.T) {
	const module = "github.com/holdfast-go/holdfast/"
	for pkg, may := range allowed {
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
