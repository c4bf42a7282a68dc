//go:build unix

package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestZooKeeperTurns(t *testing.T) {
	takeTurns(t, "zk://"+testserver.ZooKeeper(t).Addr()+"?ttl=4s&tick=250ms")
}
