// Package torture proves, by breaking everything around it, that a backend keeps the
// promises of package lock: workers contend for a few keys while they are killed and
// stopped, cut off from the server and lied to, and what came of it is recorded and
// checked afterwards. Authors of backends run it from any repository:
//
//	func TestMain(m *testing.M) {
//		torture.Main() // this binary is its own worker
//		os.Exit(m.Run())
//	}
//
//	func TestTorture(t *testing.T) {
//		server := start(t)
//		network := torture.NewNetwork(t, server.Addr())
//		torture.Run(t, &torture.Harness{
//			Name:   "mine",
//			TTL:    2 * time.Second,
//			URL:    func(worker int) string { return "mine://" + network.Addr(worker) },
//			Direct: func() (lock.Locker, error) { return lock.Open(context.Background(), "mine://"+server.Addr()) },
//			Faults: slices.Concat(torture.ProcessFaults(), network.Faults()),
//		}, torture.Options{Time: time.Minute})
//	}
//
// # What is recorded
//
// Workers are processes of their own, which open the backend by its URL and share
// nothing with the test but the machine's clock. They and the test write one log, a
// line of JSON for each event: calls and their returns, Lost when it closes, how long
// the handle says that it is valid, what was injected. An observer with an
// undisturbed connection of its own asks who holds each key, again and again, and logs
// the bounds between which the server let go of a grant. (A backend whose Inspect shows no
// tokens must show owners: what it shows is taken for a grant if it can be of no other
// acquisition of that owner.) A resource in the test takes
// writes that carry the fencing token, and refuses those that are older than what it
// has accepted; holders write to it until after they have lost, and when they wake from
// being stopped, as programs do that do not know yet.
//
// # What is checked
//
// Three questions are put to Porcupine, a checker of linearizability, as three
// models of one log: exclusion (a key is granted while no other relies on it),
// tokens (each is greater than those before), and the fence (the resource accepts what
// it should). A grant is relied on from the return of Acquire until the first
// of: Lost closes, Release is called, its process dies. "Cannot tell" is a failure,
// too. Beside it simple checks of intervals name the events that contradict each
// other; see [Check] for the list.
//
// A process that is not running cannot be told anything. Each runs a pulse that logs
// when it was late: over such a gap a grant counts as relied on until the end of
// its validity, as the holder last saw it, and no longer. What a holder does in the gap
// is for the resource to refuse.
//
// # What faults may break
//
// Every fault says which assumption it takes away: see [Assumption]. If locks are deleted by
// hand, two may hold at once, whatever a lock library does, and a run with that fault
// is judged for its tokens, its fence and its liveness. A backend that does not promise
// [lock.Leased] may lose a lock with its connection before the holder is told: so is any run
// of it with a fault that may end connections.
//
// # What goes unseen
//
// The checks that go by what the server shows, and by who was first, say nothing where the
// log leaves two explanations:
//
//   - Without tokens in Inspect, what an owner is shown to have is judged only while it can be of
//     one acquisition, or of none. What was left behind is not seen while grants of the same
//     process for the same key follow each other; and while the process waits for the key, it is
//     seen only after twice the TTL and some seconds.
//   - A grant that was lost and not released may be at the server for the TTL and two seconds,
//     and for longer after a fault. Until then no other of its process for that key is judged by
//     the order. Nor, without tokens, is one by what the server has of it after its release: this
//     goes for acquisitions whose outcome is not known, too.
//   - The order is judged only of a process that surely had a session, as something was granted to
//     it before; not near its faults; and not of shared locks.
//
// # Choices
//
// Choices come from a seed: the same seed makes the same choices of faults, keys, waits
// and holds. What the machine makes of it differs from run to run.
package torture
