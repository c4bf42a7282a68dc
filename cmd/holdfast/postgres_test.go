//go:build unix

package main

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/testserver"
)

func TestPostgresTurns(t *testing.T) {
	takeTurns(t, "postgres://"+testserver.PostgresUser+"@"+testserver.Postgres(t).Addr()+"/postgres?sslmode=disable")
}
