package torture

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance"
)

// MaxWorkers is the most workers that a run can have.
const MaxWorkers = 8

// Network stands between the workers and a server that speaks TCP: each worker has a
// proxy of its own.
type Network struct {
	proxies [MaxWorkers]*conformance.Proxy
}

// NewNetwork returns a network to the server at target, a "host:port", for the time of
// the test.
func NewNetwork(t *testing.T, target string) *Network {
	t.Helper()
	n := new(Network)
	for i := range n.proxies {
		p, err := conformance.NewProxy(target)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = p.Close() })
		n.proxies[i] = p
	}
	return n
}

// Addr returns what a worker is told in place of the server's address.
func (n *Network) Addr(worker int) string { return n.proxies[worker].Addr() }

// Faults are all that a network can have.
func (n *Network) Faults() []Fault {
	on := func(name string, lengths []float64, inject func(*conformance.Proxy, Strike)) Fault {
		return Fault{Name: name, Lengths: lengths, Inject: func(s Strike) func() {
			p := n.proxies[s.Worker.index]
			inject(p, s)
			return p.Heal
		}}
	}
	// resets is for those that may end connections.
	resets := func(name string, lengths []float64, inject func(*conformance.Proxy, Strike)) Fault {
		f := on(name, lengths, inject)
		f.Resets = true
		return f
	}
	// latency changes all the while, around d for both ways together.
	latency := func(name string, part int) Fault {
		return Fault{Name: name, Lengths: around, Inject: func(s Strike) func() {
			p, d := n.proxies[s.Worker.index], s.TTL/time.Duration(part)
			rng := rand.New(rand.NewPCG(s.Rand.Uint64(), 0)) //nolint:gosec // choices
			change := func() { p.Delay(upTo(rng, d), upTo(rng, d)) }
			change()
			ended := make(chan struct{})
			var changing sync.WaitGroup
			changing.Go(func() {
				for {
					select {
					case <-ended:
						return
					case <-time.After(upTo(rng, d)):
						change()
					}
				}
			})
			return func() {
				close(ended)
				changing.Wait()
				p.Heal()
			}
		}}
	}
	return []Fault{
		{
			Name: "latency, then partition", Lengths: []float64{1, 1.5, 2.5},
			Inject: func(s Strike) func() {
				p := n.proxies[s.Worker.index]
				p.Delay(0, s.TTL/8)
				var cutting sync.WaitGroup
				cutting.Add(1)
				cut := time.AfterFunc(s.TTL/3+upTo(s.Rand, s.TTL/3), func() {
					defer cutting.Done()
					p.Stall()
				})
				return func() {
					if !cut.Stop() {
						cutting.Wait()
					}
					p.Heal()
				}
			},
		},
		on("partition", around, func(p *conformance.Proxy, _ Strike) { p.Stall() }),
		resets("partition, bytes lost", around, func(p *conformance.Proxy, _ Strike) { p.Drop() }),
		on("requests held up", around, func(p *conformance.Proxy, _ Strike) { p.StallRequests() }),
		on("replies held up", around, func(p *conformance.Proxy, _ Strike) { p.StallReplies() }),
		resets("replies lost", []float64{0.2, 0.5}, func(p *conformance.Proxy, _ Strike) {
			for range 3 {
				p.LoseReply()
			}
		}),
		resets("requests lost", []float64{0.2, 0.5}, func(p *conformance.Proxy, _ Strike) {
			for range 3 {
				p.LoseRequest()
			}
		}),
		resets("connections reset", []float64{0}, func(p *conformance.Proxy, _ Strike) { p.Cut() }),
		resets("new connections refused", around, func(p *conformance.Proxy, s Strike) {
			p.Refuse()
			if s.Rand.IntN(2) == 0 {
				p.LoseReply() // and one of the old ones is no more
			}
		}),
		resets("out of reach", around, func(p *conformance.Proxy, _ Strike) { p.Down() }),
		latency("latency of TTL/6", 6),
		latency("latency of the TTL", 1),
	}
}
