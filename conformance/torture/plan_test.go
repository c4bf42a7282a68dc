package torture_test

import (
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance/torture"
)

// The same seed plans the same faults, in the time there is, and one at a time on each
// worker and on the server.
func TestPlan(t *testing.T) {
	faults := []torture.Fault{
		{Name: "a", Lengths: []float64{0.1, 1, 3}},
		{Name: "b"},
		{Name: "c", Server: true, Lengths: []float64{0.5}},
	}
	const length, workers = 20 * time.Second, 3
	for seed := range uint64(100) {
		all := torture.Plan(seed, faults, workers, ttl, length)
		if again := torture.Plan(seed, faults, workers, ttl, length); !slices.Equal(all, again) {
			t.Fatalf("seed %d: %v, and then %v", seed, all, again)
		}
		busy := map[int]time.Duration{}
		seen := map[string]int{}
		for _, p := range all {
			if p.At < busy[p.Lane] || p.At+p.Length > length {
				t.Errorf("seed %d: %s at %v for %v; its lane is busy until %v, and the end is at %v", seed, p.Fault, p.At, p.Length, busy[p.Lane], length)
			}
			if p.Server != (p.Lane == workers) {
				t.Errorf("seed %d: %s on lane %d", seed, p.Fault, p.Lane)
			}
			busy[p.Lane] = p.At + p.Length
			seen[p.Fault]++
		}
		if seen["a"] == 0 || seen["b"] == 0 || seen["c"] == 0 {
			t.Errorf("seed %d: %v", seed, seen)
		}
	}
}
