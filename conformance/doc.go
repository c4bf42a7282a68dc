// Package conformance proves that a [lock.Locker] keeps the promises of package
// lock. Authors of backends run it from any repository:
//
//	func TestConformance(t *testing.T) {
//		conformance.Run(t, func(t *testing.T) *conformance.Harness {
//			server := start(t)
//			return &conformance.Harness{
//				Open:     func(t *testing.T) lock.Locker { return open(t, server) },
//				TTL:      2 * time.Second,
//				Promises: lock.Fencing | lock.Leased,
//				Revoke:   func(t *testing.T, key string) { server.delete(t, key) },
//				...
//			}
//		})
//	}
//
// Each case is a subtest with a stable name, and a failure quotes the clause that
// was broken. The suite sees only the interface: it needs no help from the Locker,
// and cannot tell how it is made. It reports no failure that is not one, and may
// miss some: run it under the race detector, with every fault that the server can
// have. The [Proxy] gives most of them to any backend that speaks TCP.
//
// A case that needs a fault which the harness lacks is skipped, with its clause
// printed. With HOLDFAST_STRICT=1 in the environment it fails instead, unless
// Harness.Skip says why this backend cannot have the fault, or cannot pass the case.
package conformance
