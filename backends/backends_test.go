package backends_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/backends"
	"github.com/holdfast-go/holdfast/internal/testserver"
	"github.com/holdfast-go/holdfast/lock"
)

func TestOpen(t *testing.T) {
	for _, rawURL := range []string{"mem:backends", "redis://" + testserver.Redis(t).Addr()} {
		l, err := backends.Open(t.Context(), rawURL)
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
			continue
		}
		h, err := l.TryAcquire(t.Context(), "k")
		if err != nil {
			t.Errorf("%s: %v", rawURL, err)
		} else if err := h.Release(t.Context()); err != nil {
			t.Errorf("%s: Release: %v", rawURL, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: Close: %v", rawURL, err)
		}
	}
}

func TestSchemes(t *testing.T) {
	for _, scheme := range []string{"mem", "redis", "rediss"} {
		if !slices.Contains(lock.Schemes(), scheme) {
			t.Errorf("scheme %q is not registered", scheme)
		}
	}
	_, err := backends.Open(t.Context(), "nosuch://host")
	if err == nil || !strings.Contains(err.Error(), "redis, rediss") {
		t.Errorf("an unknown scheme: %v, want those that there are", err)
	}
}
