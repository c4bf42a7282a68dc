package conformance

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// Harness is a backend as the suite needs it. Fields that are optional make more
// cases run.
type Harness struct {
	// Open returns a Locker with a connection of its own, and the same keys as every
	// other. The suite closes it. Required.
	Open func(t *testing.T) lock.Locker

	// TTL is the time to live that the server really grants to the Lockers of Open,
	// and how long the cases take: two seconds suit a real server. Required.
	TTL time.Duration

	// Term is the longest that Valid may promise; 0 means the TTL. It is more for servers
	// that keep the lock of whoever lives, and let the TTL bound only how soon a loss is
	// noticed, and less for those of which a backend cannot know that they keep it so long.
	Term time.Duration

	// Slack is what bounds allow for a busy machine beyond what is promised; 0 means
	// two seconds. Next to nothing will do in a bubble of testing/synctest.
	Slack time.Duration

	// Promises must equal Features of every Locker, and each is proved.
	Promises lock.Features

	// OpenConfig is Open with a configuration; a zero TTL means the harness's.
	OpenConfig func(t *testing.T, cfg lock.Config) (lock.Locker, error)

	// Revoke takes the lock on key away behind its holder's back, as an operator
	// would who deletes its record.
	Revoke func(t *testing.T, key string)

	// Isolate cuts l off until heal is called: no byte passes in either direction,
	// nothing is closed, and what was sent meanwhile may arrive later.
	Isolate func(t *testing.T, l lock.Locker) (heal func())

	// SlowReplies delays every answer to l by d, until heal is called. Requests
	// arrive at once.
	SlowReplies func(t *testing.T, l lock.Locker, d time.Duration) (heal func())

	// LoseReply has the next request of l carried out by the server, and its answer
	// lost: the connection is reset in its place.
	LoseReply func(t *testing.T, l lock.Locker)

	// Restart kills the server and starts it again, with whatever it keeps.
	Restart func(t *testing.T)

	// Left is how much longer the server keeps the lock on key if it hears nothing more
	// of its holder, rounded up to what the server counts in; nothing or less if there
	// is no lock, or no end of it.
	Left func(t *testing.T, key string) time.Duration

	// Skip names faults ("Restart") and cases ("TokensGrowOverRestart") that this
	// backend cannot have, and says why.
	Skip map[string]string
}

// Case is one promise and its proof.
type Case struct {
	Name   string
	Clause string // the promise, in words
	needs  []fault
	run    func(*check)
}

// fault is something that a case needs of the harness.
type fault struct {
	name string
	has  func(*Harness) bool
}

var (
	openConfig  = fault{"OpenConfig", func(h *Harness) bool { return h.OpenConfig != nil }}
	revoke      = fault{"Revoke", func(h *Harness) bool { return h.Revoke != nil }}
	isolate     = fault{"Isolate", func(h *Harness) bool { return h.Isolate != nil }}
	slowReplies = fault{"SlowReplies", func(h *Harness) bool { return h.SlowReplies != nil }}
	loseReply   = fault{"LoseReply", func(h *Harness) bool { return h.LoseReply != nil }}
	restart     = fault{"Restart", func(h *Harness) bool { return h.Restart != nil }}
	left        = fault{"Left", func(h *Harness) bool { return h.Left != nil }}
)

// Needs says whether the case needs a field of Harness that is optional, by its name: one that
// restarts the server wants a server of its own, say.
func (c Case) Needs(field string) bool {
	return slices.ContainsFunc(c.needs, func(f fault) bool { return f.name == field })
}

// Run runs every case as a subtest, each with a harness of its own. newHarness may
// call t.Parallel.
func Run(t *testing.T, newHarness func(*testing.T) *Harness) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, newHarness(t)) })
	}
}

// Cases returns the suite's cases, for those who run them in a way of their own: in
// a bubble of testing/synctest, say.
func Cases() []Case {
	var all []Case
	for _, group := range [][]Case{
		basicCases, waitCases, contextCases, releaseCases, lossCases, marginCases, tokenCases,
		keyCases, sharedCases, fifoCases, unknownCases, muteCases, closeCases, inspectCases, configCases, timeCases, loadCases,
	} {
		all = append(all, group...)
	}
	return all
}

// Run runs the case with h.
func (c Case) Run(t *testing.T, h *Harness) {
	t.Helper()
	if h.Open == nil || h.TTL <= 0 {
		t.Fatal("conformance: the harness has no Open or no TTL")
	}
	if why, ok := h.Skip[c.Name]; ok {
		t.Skipf("skipped: %s (clause: %s)", why, c.Clause)
	}
	for _, f := range c.needs {
		if f.has(h) {
			continue
		}
		why, named := h.Skip[f.name]
		if !named && os.Getenv("HOLDFAST_STRICT") == "1" {
			t.Fatalf("the harness has no %s, and Skip does not say why (clause: %s)", f.name, c.Clause)
		}
		t.Skipf("skipped: the harness has no %s: %s (clause: %s)", f.name, why, c.Clause)
	}
	k := newCheck(t, h, c)
	c.run(k)
}
