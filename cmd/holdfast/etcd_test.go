//go:build unix

package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestEtcdTurns(t *testing.T) {
	takeTurns(t, "etcd://"+testserver.Etcd(t).Addr())
}
