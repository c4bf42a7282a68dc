package filelock_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/holdfast-go/holdfast/internal/otherprocess"
)

func TestMain(m *testing.M) {
	otherprocess.Serve()
	goleak.VerifyTestMain(m)
}
