package lock

import (
	"fmt"
	"time"
)

// Option changes one call of Acquire, TryAcquire or [Do].
type Option func(*Settings) error

// Settings is what the options of one call come to. Only implementations of
// [Locker] need it: users give options.
type Settings struct {
	Mode    Mode
	Wait    time.Duration // the longest wait; NoLimit if none was given
	MaxHold time.Duration // 0: no limit
	Margin  time.Duration
}

// NoLimit is the Wait of [Settings] when the call's context alone bounds the wait.
const NoLimit time.Duration = -1

// Resolve applies opts to the defaults. Its error matches [ErrInvalid].
func Resolve(opts ...Option) (Settings, error) {
	s := Settings{Wait: NoLimit}
	for i, opt := range opts {
		if opt == nil {
			return Settings{}, fmt.Errorf("%w: option %d is nil; leave it out", ErrInvalid, i+1)
		}
		if err := opt(&s); err != nil {
			return Settings{}, err
		}
	}
	return s, nil
}

// Wait bounds how long Acquire waits; 0 means that it does not wait. It is for
// [Do], whose context is also the parent of the work, and for callers without a
// deadline of their own. A wait that it ends fails with [ErrHeld], or with
// [ErrUnavailable] if the server could not be asked.
func Wait(d time.Duration) Option {
	return func(s *Settings) error {
		if d < 0 {
			return negative("wait", d)
		}
		s.Wait = d
		return nil
	}
}

// Shared makes the grant one of many: it holds together with every other shared
// holder, and against every exclusive one. It needs the feature [SharedMode].
func Shared() Option {
	return func(s *Settings) error {
		s.Mode = ModeShared
		return nil
	}
}

// MaxHold bounds how long the lock may be held; 0 means no limit. When it is over
// the handle is lost, with [ErrMaxHold] as cause. Others get the key when the
// holder has called Release, and one TTL later at the latest.
func MaxHold(d time.Duration) Option {
	return func(s *Settings) error {
		if d < 0 {
			return negative("max hold", d)
		}
		s.MaxHold = d
		return nil
	}
}

// Margin makes Lost close that long before the lease can end: time for the holder
// to wind down while it is still alone. It must be less than half of the TTL.
func Margin(d time.Duration) Option {
	return func(s *Settings) error {
		if d < 0 {
			return negative("margin", d)
		}
		s.Margin = d
		return nil
	}
}

func negative(what string, d time.Duration) error {
	return fmt.Errorf("%w: %s %v is negative; give 0 or more", ErrInvalid, what, d)
}
