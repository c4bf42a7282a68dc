package testserver_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestZooKeeper(t *testing.T) {
	s := testserver.ZooKeeper(t)
	if mode := testserver.ZooKeeperMode(t.Context(), s.Addr()); mode != "standalone" {
		t.Errorf("the mode is %q", mode)
	}
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if mode := testserver.ZooKeeperMode(ctx, s.Addr()); mode != "" {
		t.Errorf("a paused server answers: %q", mode)
	}
	s.Resume()
	s.Kill()
	s.Start()
	if mode := testserver.ZooKeeperMode(t.Context(), s.Addr()); mode != "standalone" {
		t.Errorf("the mode after a restart is %q", mode)
	}
}

func TestZooKeeperEnsemble(t *testing.T) {
	var routes int
	servers := testserver.ZooKeeperEnsemble(t, 3, func(_, _ int, addr string) string {
		routes++
		return addr
	})
	if routes != 6 {
		t.Errorf("route was asked %d times", routes)
	}
	var modes []string
	for _, s := range servers {
		modes = append(modes, testserver.ZooKeeperMode(t.Context(), s.Addr()))
	}
	slices.Sort(modes)
	if !slices.Equal(modes, []string{"follower", "follower", "leader"}) {
		t.Errorf("the servers are %q", modes)
	}
	servers[0].Kill()
	servers[0].Start()
	for _, s := range servers {
		s.Kill()
	}
	testserver.StartAll(servers...)
}
