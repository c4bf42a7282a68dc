//go:build !race

package torture_test

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/internal/mutate"
)

// broken is a backend, the engine or the guarded resource with one promise broken. The
// torture must notice it, under the fault that brings it to light; or, where nobody who
// only watches can, or only with luck, a case of the conformance suite or a test of the package.
type broken struct {
	name    string
	backend string // of TestTorture
	fault   string // all rounds have it
	test    string // the package and the test that notices; "": the torture does
	edits   []mutate.Edit
}

const (
	serverFile  = "lock/memlock/server.go"
	clientFile  = "lock/memlock/client.go"
	adoptFile   = "lock/driver/adopt.go"
	attemptFile = "lock/driver/attempt.go"
	handleFile  = "lock/driver/handle.go"
	releaseFile = "lock/driver/release.go"
	leaseFile   = "lock/driver/lease.go"
	renewFile   = "lock/driver/renew.go"
	gateFile    = "lock/driver/gate.go"
	closeFile   = "lock/driver/close.go"
)

var mutants = []broken{
	{"the deadline counts from the answer to a renewal", "MemoryOwnLeases", "latency, then partition", "", []mutate.Edit{
		{renewFile, "e.extend(l, f.sent, now)", "e.extend(l, now, now)"},
	}},
	{"the first deadline counts from the answer", "MemoryOwnLeases", "latency, then partition", "", []mutate.Edit{
		{clientFile, "return g, c.acquire(ctx, r, g, nil)", "err := c.acquire(ctx, r, g, nil); g.proved = driver.Now(); return g, err"},
	}},
	{"the deadline is twice as far after a renewal", "MemorySessions", "partition", "", []mutate.Edit{
		{renewFile, "if e.extend(l, f.sent, now); l.renewable() {", "if e.extend(l, f.sent, now); l.renewable() {\n\t\tl.deadline = f.sent.Add(2 * safe(l.term))"},
	}},
	{"no local deadline", "MemorySessions", "partition", "", []mutate.Edit{
		{leaseFile, "	return term - term/100 - max(10*time.Millisecond, term/50)", "	return 10 * term"},
	}},
	{"no margin for clocks", "MemoryOwnLeases", "partition", "", []mutate.Edit{
		{leaseFile, "	return term - term/100 - max(10*time.Millisecond, term/50)", "	return term + term/100"},
	}},
	{"a lost handle is revived by a late renewal", "MemorySessions", "partition", "", []mutate.Edit{
		{renewFile, "if e.extend(l, f.sent, now); l.renewable() {", "if e.extend(l, f.sent, now); l.renewable() {\n\t\tfor h := l.handles; h != nil; h = h.next { if h.state == lost { h.state, h.lostCh = held, nil } }"},
	}},
	{"the same token every time", "MemorySessions", "requests lost", "", []mutate.Edit{
		{serverFile, "s.token++", "s.token = 7"},
	}},
	{"tokens begin again after a release", "MemoryOwnLeases", "requests lost", "", []mutate.Edit{
		{serverFile, "\t\tdelete(s.keys, key)\n", "\t\tdelete(s.keys, key)\n\t\ts.token = 0\n"},
	}},
	{"an unknown outcome is left behind on a session", "MemorySessions", "all replies lost", "", []mutate.Edit{
		{attemptFile, "return e.d.Abandon(ctx, &req.Request)", "return nil"},
	}},
	{"goroutines of one Locker hold together", "MemorySessions", "requests lost", "", []mutate.Edit{
		{gateFile, "return g.inside == 0 ||", "return true || g.inside == 0 ||"},
		{gateFile, "if try && taken {", "if false {"},
		{serverFile, "free := len(e.holds) == 0\n", "free := len(e.holds) == 0 || e.holds[0].lease == h.lease\n"},
	}},
	{"a release frees whoever holds", "MemoryOwnLeases", "partition", "", []mutate.Edit{
		{clientFile, "if s.find(h.key, h.id) == nil {", "if false {"},
		{clientFile, "return other.id == h.id", "return true"},
	}},
	{"renewed once, and never again", "MemorySessions", torture.NoFault, "", []mutate.Edit{
		{leaseFile, "		l.renewAt = sent.Add(renewAfter(l.pace))\n", "		if l.renewAt == 0 { l.renewAt = sent.Add(renewAfter(l.pace)) } else { l.renewAt = l.deadline.Add(l.term) }\n"},
	}},
	{"who comes last is served first", "MemorySessions", torture.NoFault, "", []mutate.Edit{
		{serverFile, "		e.queue = append(e.queue, h)\n", "		e.queue = append([]*hold{h}, e.queue...)\n"},
	}},
	{"a cancelled call waits for the server", "MemoryOwnLeases", "partition", "", []mutate.Edit{
		{attemptFile, "	case res := <-at.results:\n		return a.take(ctx, at, res)\n	case <-ctx.Done():", "	case res := <-at.results:\n		return a.take(ctx, at, res)\n	case <-chan int(nil):"},
		{clientFile, "	case <-ctx.Done():\n		return ctx.Err()\n	}\n}\n\nfunc (c *client) serve", "	}\n}\n\nfunc (c *client) serve"},
	}},
	{"a waiter is not told that the key is its own", "MemorySessions", "requests lost", "", []mutate.Edit{
		{serverFile, "		next.answer(nil)\n", "		if next.token%8 != 0 {\n			next.answer(nil)\n		}\n"},
	}},
	{"a release whose context is done does nothing", "MemorySessions", "requests lost", "", []mutate.Edit{
		{releaseFile, "Release(ctx context.Context) error {\n\te := h.e", "Release(ctx context.Context) error {\n\tif ctx.Err() != nil { return ctx.Err() }\n\te := h.e"},
	}},
	{"Release closes Lost", "MemorySessions", "requests lost", "", []mutate.Edit{
		{releaseFile, "h.state = released", "h.state = released; if h.lostCh != nil { close(h.lostCh) }"},
	}},
	{"a grant that is old is returned as it is", "MemoryOwnLeases", "latency of the TTL", "", []mutate.Edit{
		{adoptFile, "case l.deadline.Sub(now) >= max(l.term/2, a.set.Margin+l.term/4):", "case true:"},
	}},
	{"the resource takes every write", "MemoryOwnLeases", "partition", "", []mutate.Edit{
		{"conformance/torture/resource.go", "if accepted = token >= r.fence[key]; accepted {", "if accepted = true; accepted {"},
	}},
	{"a file keeps no token", "File", "kill -9", "", []mutate.Edit{
		{"lock/filelock/driver.go", "token := max(last+1, lock.Token(now.UnixMicro()))", "token := lock.Token(1); _ = last"},
	}},
	{"Redis: a release frees whoever holds", "Redis", "SIGSTOP", "", []mutate.Edit{
		{"redislock/release.lua", "string.sub(v, 1, #ARGV[1] + 1) == ARGV[1] .. ' '", "true"},
	}},
	{"Redis: a counter alone makes the tokens", "Redis", "server loses its data", "", []mutate.Edit{
		{"redislock/acquire.lua", "local token = now\nif last and tonumber(last) >= tonumber(now) then token", "local token = '1'\nif last then token"},
	}},
	{"Redis: the deadline counts from the answer", "Redis", "latency, then partition", "", []mutate.Edit{
		{"redislock/acquire.go", "token: lock.Token(token), ttl: ttl, proved: proved}", "token: lock.Token(token), ttl: ttl, proved: max(proved, driver.Now())}"},
	}},
	{"an unknown outcome is left to its own lease", "", "", "lock/memlock TestConformance/OwnLeases/UnknownAcquireLeavesNothing", []mutate.Edit{
		{attemptFile, "return e.d.Abandon(ctx, &req.Request)", "return nil"},
	}},
	{"a failed renewal counts as a loss", "", "", "lock/memlock TestConformance/Sessions/FailedRenewalIsNoLoss", []mutate.Edit{
		{renewFile, "	l.tries++\n", "	e.loseLease(l, now, false, err)\n	return\n"},
	}},
	{"what is lost is freed before its holder has wound down", "", "", "lock/memlock TestConformance/OwnLeases/WindingDownIsAlone", []mutate.Edit{
		{handleFile, "e.post(background, lock.Event{Kind: lock.LostLock,", "h.startRelease(background, now, e.settle); e.post(background, lock.Event{Kind: lock.LostLock,"},
	}},
	{"Close waits for a mute server", "", "", "lock/memlock TestConformance/Sessions/CloseWhenMute", []mutate.Edit{
		{closeFile, "case <-time.After(closeLimit * 2 / 3):", "case <-time.After(time.Minute):"},
	}},
}

// more mutants, for which there is time in a long run.
var moreMutants = []broken{
	{"etcd: what was abandoned can come late", "", "", "etcdlock TestLateRequestMakesNoGhost", []mutate.Edit{
		{"etcdlock/acquire.go", `put, remove := clientv3.OpPut(s.bar, "", clientv3.WithLease(s.id))`, "put, remove := clientv3.OpGet(s.bar)"},
	}},
	{"etcd: a name is used again while its deletion is in doubt", "", "", "etcdlock TestLateRemovalHarmsNobody", []mutate.Edit{
		{"etcdlock/entry.go", "	e.retired = true\n", "	e.retired = false\n"},
	}},
	{"etcd: who has waited does not look whether it is still there", "", "", "etcdlock TestWaiterLosesItsLease", []mutate.Edit{
		{"etcdlock/acquire.go", "	case own == nil, own.CreateRevision != e.token:\n", "	case own == nil:\n		return rivalIn(responses[0]), nil\n	case own.CreateRevision != e.token:\n"},
	}},
	{"etcd: a key is taken for those that begin with it", "", "", "etcdlock TestConformance/KeyPrefixIsAnotherKey", []mutate.Edit{
		{"etcdlock/names.go", `driver.BraceKey(key) + "/"`, `strings.Trim(driver.BraceKey(key), "{}")`},
	}},
	{"ZooKeeper: who has waited does not look whether it is still there", "", "", "zklock TestWaiterLosesItsNode", []mutate.Edit{
		{"zklock/acquire.go", "	if !slices.Contains(names, own.name) {\n", "	if !slices.Contains(append(names, own.name), own.name) {\n"},
	}},
	{"ZooKeeper: a read counts as a heartbeat", "", "", "zklock TestCutOffFollower/for_good", []mutate.Edit{
		{"zklock/heartbeat.go", "_, err := s.conn.Set(s.node, []byte(s.b.cfg.Owner), -1)", "_, _, err := s.conn.Exists(s.node)"},
	}},
	{"ZooKeeper: what was made is not looked for if the answer was lost", "", "", "zklock TestCreateReplyLost", []mutate.Edit{
		{"zklock/acquire.go", "p.doubt = err != nil && unanswered(err)", "p.doubt = false"},
	}},
	{"ZooKeeper: a node is taken for its own by its name alone", "", "", "zklock TestNodeOfAnotherSession", []mutate.Edit{
		{"zklock/acquire.go", "case stat.EphemeralOwner != p.s.id:", "case false:"},
	}},
	{"ZooKeeper: a waiter does not hear of a release", "", "", "zklock TestWaiterHearsOfRelease", []mutate.Edit{
		{"zklock/acquire.go", "	case <-events:\n", "	case <-chan zk.Event(nil):\n"},
	}},
	{"ZooKeeper: who waits looks again and again", "", "", "zklock TestWaitersDoNotPoll", []mutate.Edit{
		{"zklock/acquire.go", "slow := time.NewTimer(p.s.b.cfg.TTL)", "slow := time.NewTimer(p.s.b.cfg.TTL / 100)"},
	}},
	{"ZooKeeper: all who wait look at each release", "", "", "zklock TestWaitersDoNotPoll", []mutate.Edit{
		{"zklock/names.go", "if n == 0 || before(nearest, o) {", "if n == 0 || before(o, nearest) {"},
	}},
	{"ZooKeeper: a session is relied on for its whole timeout", "", "", "zklock TestConformance/ValidNeverExceedsTTL", []mutate.Edit{
		{"zklock/heartbeat.go", "return timeout - timeout/4 - tick/2", "return timeout"},
	}},
	{"ZooKeeper: what was given up stays in line", "ZooKeeper", "latency of the TTL", "", []mutate.Edit{
		{"zklock/acquire.go", "	p.abandoned = true\n	p.mu.Unlock()\n", "	p.abandoned = true\n	p.mu.Unlock()\n	if true {\n		return nil\n	}\n"},
	}},
	{"etcd: what was given up stays in the queue", "etcd", "latency of the TTL", "", []mutate.Edit{
		{"etcdlock/acquire.go", "	case e == nil:\n		return nil\n	case doubt:", "	case true:\n		return nil\n	case doubt:"},
	}},
	{"PostgreSQL: what was given up stays on its session", "PostgreSQL", "latency of the TTL", "", []mutate.Edit{
		{"pglock/driver.go", "	freeErr := g.free(ctx)\n", "	var freeErr error\n"},
		{"pglock/driver.go", "	if err := g.free(ctx); !errors.Is(err, lock.ErrLost) {", "	if err := error(nil); !errors.Is(err, lock.ErrLost) {"},
	}},
	{"PostgreSQL: a sequence alone makes the tokens", "", "", "pglock TestTokensGrowOverCrashes", []mutate.Edit{
		{"pglock/schema.sql", "CREATE UNLOGGED TABLE", "CREATE TABLE"},
		{"pglock/token.go", "WHERE i.born = '%s' ", "WHERE i.born <> '' OR i.born = '%s' "},
	}},
	{"PostgreSQL: others of a session join a lock that was refused to it", "", "", "pglock TestNobodyJoinsWhatWasRefused", []mutate.Edit{
		{"pglock/hold.go", "	if h.doubted {", "	if false {"},
	}},
	{"PostgreSQL: a lock that was granted twice is left on its connection", "", "", "pglock TestGrantAtTheEndOfASlice", []mutate.Edit{
		{"pglock/hold.go", "(h.mode == lock.ModeShared || s.quiet) {", "false {"},
	}},
}

func TestMutants(t *testing.T) {
	mutants := mutants
	if os.Getenv("TORTURE") != "" {
		mutants = slices.Concat(mutants, moreMutants)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			notice := m.torture
			if m.test != "" {
				notice = m.named
			}
			by := "**nobody**"
			defer func() { noticed(m.name, by) }()
			by = notice(t)
			t.Log("noticed by", by)
		})
	}
}

// ruleLine is a violation in the output of a run.
var ruleLine = regexp.MustCompile(`(?m)^ +run\.go:\d+: ([a-z -]+): `)

// torture runs the torture on the mutant until it notices.
func (m broken) torture(t *testing.T) string {
	binary := mutate.Build(t, "internal/torture", m.edits)
	cmd := exec.CommandContext(t.Context(), binary, "-test.run", "^TestTorture$/^"+m.backend+"$", "-test.timeout", "10m") //nolint:gosec // of this module
	cmd.Env = append(os.Environ(), "TORTURE=2h", "TORTURE_FIRST=1", "TORTURE_FAULT="+m.fault, "TORTURE_REPORT=")
	out, err := cmd.CombinedOutput()
	var rules []string
	for _, match := range ruleLine.FindAllStringSubmatch(string(out), -1) {
		if match[1] != "torture" {
			rules = append(rules, match[1])
		}
	}
	slices.Sort(rules)
	if rules = slices.Compact(rules); err == nil || len(rules) == 0 {
		t.Fatalf("not noticed: %v\n%s", err, out)
	}
	return "torture: " + strings.Join(rules, ", ")
}

// named runs the test that notices, which must fail, and not only break off. A case of the suite must
// fail for its clause: if it fails because a server was slow to start, say, that is no answer, and
// it is asked again.
func (m broken) named(t *testing.T) string {
	pkg, name, _ := strings.Cut(m.test, " ")
	binary := mutate.Build(t, pkg, m.edits)
	pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	suite, isSuite := strings.CutPrefix(name, "TestConformance/")
	var err error
	var out []byte
	for range 3 {
		cmd := exec.CommandContext(t.Context(), binary, "-test.run", pattern, "-test.failfast", "-test.timeout", "3m") //nolint:gosec // of this module
		out, err = cmd.CombinedOutput()
		switch failed := strings.Contains(string(out), "--- FAIL: "+name); {
		case err == nil:
			t.Fatalf("not noticed:\n%s", out)
		case failed && !isSuite:
			return pkg + ": " + name
		case failed && strings.Contains(string(out), "broken clause: "):
			return "the suite: " + suite
		}
	}
	t.Fatalf("no answer: %v\n%s", err, out)
	return ""
}
