package zklock

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// NewDriver is New without the engine.
func NewDriver(servers []string, cfg Config) (driver.Driver, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	return newBackend(servers, cfg, noHost{}), nil
}

// noHost hears nothing.
type noHost struct{}

func (noHost) Keep(driver.Lease, driver.Stamp) {}
func (noHost) LeaseLost(driver.Lease, error)   {}
func (noHost) GrantLost(string, error)         {}
func (noHost) Warn(error)                      {}

// Booked is how many requests a driver has on its books, and for how many bytes of paths.
func Booked(d driver.Driver) (requests, paths int) {
	b := d.(*backend)
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.sessions {
		s.mu.Lock()
		paths += s.paths
		s.mu.Unlock()
	}
	return len(b.places), paths
}

// Watched says whether the node of a grant is watched.
func Watched(l driver.Lease, path string) bool {
	ws := l.(*session).watches
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return ws.held[path].watched
}

// Age has a session know of no sign of life that its leader will have heard of, as if the
// process had been stopped since the last.
func Age(l driver.Lease) {
	p := &l.(*session).pulse
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known = 0
}

// Escape returns the name of a key's node.
func Escape(key string) string { return escape(key) }

// Member is a node in line.
type Member struct {
	Name        string
	Shared      bool
	ID, Session string
	Seq         int32
}

// ParseMember reads the name of a node.
func ParseMember(name string) (Member, bool) {
	m, ok := parseMember(name)
	return Member{m.name, m.shared, m.id, m.session, m.seq}, ok
}

// Blockers says how many of a line keep its last from the lock, and which is next to that.
// They are written as their kind, r or w, and their number.
func Blockers(line []string) (int, string) {
	written := map[string]string{"": ""}
	var names []string
	for i, m := range line {
		seq, _ := strconv.ParseInt(m[1:], 10, 32)
		name := fmt.Sprintf("%s%010d", memberPrefix(m[0] == 'r', fmt.Sprintf("%032x", i), sessionText(1)), seq)
		names, written[name] = append(names, name), m
	}
	own, _ := parseMember(names[len(names)-1])
	n, next := blockers(append(names, "a stranger"), own)
	return n, written[next]
}

// SetLastSequence has locks' nodes made anew after fewer numbers.
func SetLastSequence(t *testing.T, n int32) {
	old := lastSequence
	lastSequence = n
	t.Cleanup(func() { lastSequence = old })
}

// SetMaxPaths bounds the paths of a session.
func SetMaxPaths(t *testing.T, n int) {
	old := maxPaths
	maxPaths = n
	t.Cleanup(func() { maxPaths = old })
}

// MemberName is the name that the server would give to a node.
func MemberName(id string, session int64, seq int32) string {
	return fmt.Sprintf("%s%010d", memberPrefix(false, id, sessionText(session)), seq)
}
