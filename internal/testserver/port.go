package testserver

import (
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"testing"
)

// Ports are taken from below the range from which Linux (from 32768) and Darwin
// (from 49152) number outgoing connections, and not by listening on :0, which
// gives one of that range: while a server is down, a client that dials its port
// over and over would sooner or later be given that very port as its own.
const minPort, maxPort = 10000, 32000

// claim is a loopback port that no other user of this package takes, in any
// process, as long as the claim is held: also while its server is down. It is a
// UDP socket of the same number, which the kernel frees whatever becomes of us.
type claim struct {
	port int
	udp  net.PacketConn
}

func claimPort(t testing.TB) claim {
	t.Helper()
	return claimPorts(t, 0)[0]
}

// claimPorts claims a port, and those that are so much higher: servers have ports that
// follow from another.
func claimPorts(t testing.TB, distances ...int) []claim {
	t.Helper()
	last := maxPort - slices.Max(distances)
	for range 100 {
		if claims, ok := tryPorts(minPort+rand.IntN(last-minPort), distances); ok {
			return claims
		}
	}
	t.Fatalf("testserver: found no free port between %d and %d", minPort, last)
	return nil
}

func tryPorts(first int, distances []int) (claims []claim, ok bool) {
	for _, d := range distances {
		c, ok := tryPort(first + d)
		if !ok {
			for _, c := range claims {
				c.release()
			}
			return nil, false
		}
		claims = append(claims, c)
	}
	return claims, true
}

func tryPort(port int) (claim, bool) {
	udp, err := net.ListenPacket("udp", loopback(port))
	if err != nil {
		return claim{}, false
	}
	if !portFree(port) {
		_ = udp.Close()
		return claim{}, false
	}
	return claim{port, udp}, true
}

func (c claim) release() { _ = c.udp.Close() }

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// portFree says whether a server could listen on port at this moment.
func portFree(port int) bool {
	l, err := net.Listen("tcp", loopback(port))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
