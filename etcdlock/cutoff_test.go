package etcdlock_test

import (
	"testing"

	"github.com/holdfast-go/holdfast/internal/throughproxy"
)

func TestCutOffHolders(t *testing.T) { throughproxy.CutOffHolders(t, newSuite(t, byURL).harness()) }
