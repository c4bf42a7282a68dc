package driver_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-go/holdfast/lock/driver"
)

func TestNowFollowsTheClock(t *testing.T) {
	began, stamp := time.Now(), driver.Now()
	time.Sleep(20 * time.Millisecond)
	later := driver.Now()
	if d, most := later.Sub(stamp), time.Since(began); d < 19*time.Millisecond || d > most+time.Millisecond {
		t.Errorf("Now advanced by %v in %v", d, most)
	}
	if got := stamp.Add(time.Second).Sub(stamp); got != time.Second {
		t.Errorf("Add and Sub give %v, want 1s", got)
	}
}

func TestNowIsExactInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stamp := driver.Now()
		time.Sleep(time.Hour)
		if d := driver.Now().Sub(stamp); d != time.Hour {
			t.Errorf("Now advanced by %v in an hour", d)
		}
	})
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		driver.Now()
	}
}
