//go:build !race

package conformance_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/internal/mutate"
)

// mutant is the reference backend or the engine with one promise broken: a few lines
// of its source are replaced, and the suite must fail in the case that names the
// promise. A replacement that does not find its text is an error, so that the
// mutants follow the source.
type mutant struct {
	name  string
	mode  string // of memlock
	cases []string
	edits []edit
}

type edit = mutate.Edit

const (
	sessions  = "Sessions"
	ownLeases = "OwnLeases"

	serverFile  = "lock/memlock/server.go"
	clientFile  = "lock/memlock/client.go"
	acquireFile = "lock/driver/acquire.go"
	attemptFile = "lock/driver/attempt.go"
	adoptFile   = "lock/driver/adopt.go"
	handleFile  = "lock/driver/handle.go"
	releaseFile = "lock/driver/release.go"
	leaseFile   = "lock/driver/lease.go"
	renewFile   = "lock/driver/renew.go"
	gateFile    = "lock/driver/gate.go"
	closeFile   = "lock/driver/close.go"
)

var mutants = []mutant{
	{"NoCompareOnRelease", ownLeases, []string{"ReleaseIsOwn", "ReleaseAfterExpiry"}, []edit{
		{clientFile, "if s.find(h.key, h.id) == nil {", "if false {"},
		{clientFile, "return other.id == h.id", "return true"},
	}},
	{"DeadlineFromReply", ownLeases, []string{"DeadlineFromSending"}, []edit{
		{renewFile, "e.extend(l, f.sent, now)", "e.extend(l, now, now)"},
	}},
	{"FirstDeadlineFromReply", ownLeases, []string{"DeadlineFromSending"}, []edit{
		{clientFile, "return g, c.acquire(ctx, r, g, nil)", "err := c.acquire(ctx, r, g, nil); g.proved = driver.Now(); return g, err"},
	}},
	{"DeadlineTwiceAsFarAfterRenewal", sessions, []string{"ValidNeverExceedsTTL", "LostWithinTTL"}, []edit{
		{renewFile, "if e.extend(l, f.sent, now); l.renewable() {", "if e.extend(l, f.sent, now); l.renewable() {\n\t\tl.deadline = f.sent.Add(2 * safe(l.term))"},
	}},
	{"RenewalAfterRelease", ownLeases, []string{"ReleaseStopsRenewal", "ReleaseStopsRenewalWhenMute"}, []edit{
		{leaseFile, "return !l.ended && !l.resting", "return !l.ended"},
		{handleFile, "case !l.shared: // nothing is left to renew\n\t\tl.ended = true\n\t\te.alarms.unset(l)\n\t\tdelete(e.leases, l.Lease)\n", "case !l.shared:\n"},
		{serverFile, "if h != nil && s.find(h.key, h.id) == nil {", "if e := s.entry(h.key); len(e.holds) == 0 { s.grant(e, h) } else if e.holds[0].id != h.id {"},
	}},
	{"LossRevivedByLateRenewal", sessions, []string{"MarginSurvivesHeal"}, []edit{
		{renewFile, "if e.extend(l, f.sent, now); l.renewable() {", "if e.extend(l, f.sent, now); l.renewable() {\n\t\tfor h := l.handles; h != nil; h = h.next { if h.state == lost { h.state, h.lostCh = held, nil } }"},
	}},
	{"ConstantToken", sessions, []string{"TokensGrow", "TokensGrowOverLoss"}, []edit{
		{serverFile, "s.token++", "s.token = 7"},
	}},
	{"TokenRestartsAfterRelease", ownLeases, []string{"TokensGrow"}, []edit{
		{serverFile, "\t\tdelete(s.keys, key)\n", "\t\tdelete(s.keys, key)\n\t\ts.token = 0\n"},
	}},
	{"HoldBoundToAcquireContext", sessions, []string{"ContextDoesNotEndHold", "DeadlineDoesNotEndHold"}, []edit{
		{adoptFile, "	e.held[h.id] = h\n", "	e.held[h.id] = h\n	context.AfterFunc(a.ctx, func() { _ = h.Release(context.Background()) })\n"},
	}},
	{"LostClosedByRelease", sessions, []string{"ReleaseIsNoLoss"}, []edit{
		{releaseFile, "h.state = released", "h.state = released; if h.lostCh != nil { close(h.lostCh) }"},
	}},
	{"FreedBetweenLostAndRelease", ownLeases, []string{"WindingDownIsAlone"}, []edit{
		{handleFile, "e.post(background, lock.Event{Kind: lock.LostLock,", "h.startRelease(background, now, e.settle); e.post(background, lock.Event{Kind: lock.LostLock,"},
	}},
	{"UnknownOutcomeLeftBehind", ownLeases, []string{"UnknownAcquireLeavesNothing", "WaitSurvivesLostReply", "ContextShorterThanAnswer"}, []edit{
		{attemptFile, "return e.d.Abandon(ctx, &req.Request)", "return nil"},
	}},
	{"GhostOnSharedSession", sessions, []string{"UnknownAcquireLeavesNothing", "AbandonedAcquireLeavesNothing", "ContextShorterThanAnswer"}, []edit{
		{attemptFile, "return e.d.Abandon(ctx, &req.Request)", "return nil"},
	}},
	{"TwoHoldersInsideOneLocker", sessions, []string{"ExclusionInOneLocker"}, []edit{
		{gateFile, "return g.inside == 0 ||", "return true || g.inside == 0 ||"},
		{gateFile, "if try && taken {", "if false {"},
		{serverFile, "free := len(e.holds) == 0\n", "free := len(e.holds) == 0 || e.holds[0].lease == h.lease\n"},
	}},
	{"SecondReleaseFails", sessions, []string{"ReleaseAgain"}, []edit{
		{releaseFile, "	h.startRelease(ctx, now, func(", "	if h.release != nil { defer func() { err = lock.ErrReleased }() }\n	h.startRelease(ctx, now, func("},
		{releaseFile, "Release(ctx context.Context) error {\n\te := h.e", "Release(ctx context.Context) (err error) {\n\te := h.e"},
	}},
	{"CloseHangsWhenMute", sessions, []string{"CloseWhenMute"}, []edit{
		{closeFile, "case <-time.After(closeLimit * 2 / 3):", "case <-time.After(time.Minute):"},
	}},
	{"PrefixCountedAsKey", ownLeases, []string{"KeyPrefixIsAnotherKey", "KeysAreDistinct"}, []edit{
		{serverFile, "	s.sweep(key)\n	e := s.keys[key]\n	if e == nil {\n		e =", "	s.sweep(key)\n	e := s.keys[key]\n	for other, o := range s.keys { if e == nil && len(other) > len(key) && other[:len(key)] == key { e = o } }\n	if e == nil {\n		e ="},
	}},
	{"RenewalCreatesWhatIsGone", ownLeases, []string{"RevokedIsNotMadeAgain", "RevokedIsNoticed", "RevokedWhileAnotherPolls"}, []edit{
		{serverFile, "if h != nil && s.find(h.key, h.id) == nil {", "if h != nil && s.find(h.key, h.id) == nil { s.grant(s.entry(h.key), h) }\n	if false {"},
	}},
	{"FailedRenewalIsLoss", sessions, []string{"FailedRenewalIsNoLoss"}, []edit{
		{renewFile, "	l.tries++\n", "	e.loseLease(l, now, false, err)\n	return\n"},
	}},
	{"NoLocalDeadline", sessions, []string{"LostBeforeTakeover", "LostWithinTTL"}, []edit{
		{leaseFile, "	return term - term/100 - max(10*time.Millisecond, term/50)", "	return 10 * term"},
	}},
	{"NoMarginForClocks", ownLeases, []string{"LostBeforeTakeover"}, []edit{
		{leaseFile, "	return term - term/100 - max(10*time.Millisecond, term/50)", "	return term + term/100"},
	}},
	{"MarginIgnored", ownLeases, []string{"MarginComesFirst"}, []edit{
		{adoptFile, "margin: a.set.Margin,", ""},
	}},
	{"MaxHoldIgnored", sessions, []string{"MaxHold", "MaxHoldFreesAtLast"}, []edit{
		{adoptFile, "if a.set.MaxHold > 0 {", "if false {"},
	}},
	{"LostAfterMaxHoldKeptForEver", sessions, []string{"MaxHoldFreesAtLast"}, []edit{
		{handleFile, "e.set(h.limit, now.Add(e.cfg.TTL))", "h.limit = nil"},
	}},
	{"ReleaseBoundToItsContext", sessions, []string{"ReleaseWithDeadContext"}, []edit{
		{releaseFile, "Release(ctx context.Context) error {\n\te := h.e", "Release(ctx context.Context) error {\n\tif ctx.Err() != nil { return ctx.Err() }\n\te := h.e"},
	}},
	{"BusyAndUnavailableMixed", sessions, []string{"MuteServerIsNotBusy", "MuteServerTryEnds"}, []edit{
		{acquireFile, "seen = unavailable(errLimit)", "seen = lock.ErrHeld"},
	}},
	{"WaitCutTo32Bits", sessions, []string{"LongWait"}, []edit{
		{acquireFile, "return context.WithTimeout(a.ctx, a.set.Wait)", "return context.WithTimeout(a.ctx, time.Duration(int32(a.set.Wait.Milliseconds()))*time.Millisecond)"},
	}},
	{"WaitCappedByTTL", ownLeases, []string{"WaitOutlastsTTL"}, []edit{
		{acquireFile, "return context.WithTimeout(a.ctx, a.set.Wait)", "return context.WithTimeout(a.ctx, min(a.set.Wait, a.e.cfg.TTL))"},
	}},
	{"LimitToldAsContext", sessions, []string{"FirstLimitDecides", "WaitIsBounded"}, []edit{
		{acquireFile, "	default:\n		return seen\n", "	default:\n		return fmt.Errorf(\"%w: %w\", context.DeadlineExceeded, seen)\n"},
	}},
	{"CauseDropped", ownLeases, []string{"ContextDoneBefore"}, []edit{
		{acquireFile, "return ctxError(a.ctx)", "return a.ctx.Err()"},
	}},
	{"LeaseCutTo32Bits", ownLeases, []string{"LongTTL", "ServerKeepsTTL"}, []edit{
		{serverFile, "h.lease.expires = driver.Now().Add(h.lease.ttl)", "h.lease.expires = driver.Now().Add(time.Duration(int32(h.lease.ttl.Milliseconds())) * time.Millisecond)"},
	}},
	{"LeaseWithoutEnd", ownLeases, []string{"ServerKeepsTTL"}, []edit{
		{serverFile, "h.lease.expires = driver.Now().Add(h.lease.ttl)", "h.lease.expires = math.MaxInt64"},
	}},
	{"CancelWaitsForTheServer", ownLeases, []string{"MuteServerCancel"}, []edit{
		{attemptFile, "	case res := <-at.results:\n		return a.take(ctx, at, res)\n	case <-ctx.Done():", "	case res := <-at.results:\n		return a.take(ctx, at, res)\n	case <-chan int(nil):"},
		{clientFile, "	case <-ctx.Done():\n		return ctx.Err()\n	}\n}\n\nfunc (c *client) serve", "	}\n}\n\nfunc (c *client) serve"},
	}},
	{"WaiterStaysInQueue", sessions, []string{"WaitLeavesNothing", "HandOverRace", "ShortWait"}, []edit{
		{attemptFile, "return e.d.Abandon(ctx, &req.Request)", "return nil"},
	}},
	{"LastComeFirstServed", sessions, []string{"FIFO"}, []edit{
		{serverFile, "		e.queue = append(e.queue, h)\n", "		e.queue = append([]*hold{h}, e.queue...)\n"},
	}},
	{"ReadersFirst", ownLeases, []string{"ReadersDoNotStarveWriters"}, []edit{
		{serverFile, "	if now < e.writer {\n", "	if false {\n"},
	}},
	{"RenewalOnlyOnce", sessions, []string{"RenewedUntilReleased", "ManyKeys"}, []edit{
		{leaseFile, "		l.renewAt = sent.Add(renewAfter(l.pace))\n", "		if l.renewAt == 0 { l.renewAt = sent.Add(renewAfter(l.pace)) } else { l.renewAt = l.deadline.Add(l.term) }\n"},
	}},
}

func TestMutants(t *testing.T) {
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			binary := mutate.Build(t, "lock/memlock", m.edits)
			for _, name := range m.cases {
				catch(t, binary, "TestConformance/"+m.mode+"/"+name)
			}
		})
	}
}

// catch runs one case against the mutant: it must fail there, and for its clause.
func catch(t *testing.T, binary, name string) {
	pattern := "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
	out, err := exec.CommandContext(t.Context(), binary, "-test.run", pattern, "-test.timeout", "60s").CombinedOutput()
	text := string(out)
	switch {
	case err == nil:
		t.Errorf("not caught by %s", name)
	case !strings.Contains(text, "--- FAIL: "+name) || !strings.Contains(text, "broken clause: "):
		t.Errorf("%s failed, but not for its clause:\n%s", name, text)
	}
}
