package lock

import "errors"

// The errors of this package are matched with [errors.Is]. A missing ability
// wraps [errors.ErrUnsupported].
var (
	// ErrHeld: somebody else holds the key.
	ErrHeld = errors.New("held by another holder")

	// ErrLost: the lock can no longer be proved held.
	ErrLost = errors.New("lock lost")

	// ErrReleased: the handle was released by its holder.
	ErrReleased = errors.New("lock released")

	// ErrClosed: the Locker was closed.
	ErrClosed = errors.New("locker closed")

	// ErrUnavailable: the server gave no answer, or the outcome is not known.
	// Never mixed with ErrHeld: "cannot know" is not "busy".
	ErrUnavailable = errors.New("backend unavailable or outcome unknown")

	// ErrInvalid: a key, an option or a configuration is wrong. Nothing was sent.
	ErrInvalid = errors.New("invalid")

	// ErrMaxHold: the cause of a loss by the option [MaxHold].
	ErrMaxHold = errors.New("held longer than MaxHold allows")
)
