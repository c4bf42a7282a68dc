package lock

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Limits of keys and configurations. A backend may be narrower and says so.
const (
	MaxKeyLen   = 1024 // bytes
	MaxOwnerLen = 256  // bytes

	DefaultTTL = 15 * time.Second
	MinTTL     = 100 * time.Millisecond // below it, the margins for clocks and requests leave nothing
	MaxTTL     = 8760 * time.Hour       // a year; a dead holder keeps others out that long

	MaxTokenBase Token = 1 << 62
)

// Config is what every backend takes. The zero value is ready for use.
type Config struct {
	// TTL is how long a dead holder keeps others out; 0 means [DefaultTTL].
	// Renewal is automatic: it bounds the detection of a crash, not the work. A
	// third of it may pass before the loss of a deleted lock is noticed, and
	// renewals that take longer than a sixth of it, or five seconds, count as failed.
	TTL time.Duration

	// Owner is what Inspect shows of a holder; "" means host:pid:program.
	Owner string

	// TokenBase is added to every token: for moving to a backend whose numbers
	// are smaller than those that resources have already accepted.
	TokenBase Token

	// Observe, if not nil, is told of what happens. It is called by several
	// goroutines at once and outside all locks: what happens at nearly the same
	// time may be told in either order. It must not block, as the next renewal may
	// wait for it, nor panic: a lock that was being acquired would stay held, by
	// nobody. Its context is that of the call that caused the event, which may be
	// over, and the background for what the Locker does by itself.
	Observe func(context.Context, Event)
}

// WithDefaults returns c with its zero values filled in. Its error matches
// [ErrInvalid].
func (c Config) WithDefaults() (Config, error) {
	if c.TTL == 0 {
		c.TTL = DefaultTTL
	}
	if c.TTL < MinTTL || c.TTL > MaxTTL {
		return Config{}, fmt.Errorf("%w: ttl %v is out of range; give %v to %v (the default is %v)",
			ErrInvalid, c.TTL, MinTTL, MaxTTL, DefaultTTL)
	}
	if c.Owner == "" {
		c.Owner = defaultOwner()
	}
	if err := checkOwner(c.Owner); err != nil {
		return Config{}, err
	}
	if c.TokenBase > MaxTokenBase {
		return Config{}, fmt.Errorf("%w: token base %d is greater than %d", ErrInvalid, c.TokenBase, MaxTokenBase)
	}
	return c, nil
}

// CheckKey returns nil if key can be locked. Its error matches [ErrInvalid].
func CheckKey(key string) error {
	if key == "" {
		return fmt.Errorf("%w: the key is empty", ErrInvalid)
	}
	if len(key) > MaxKeyLen {
		return fmt.Errorf("%w: the key has %d bytes, more than %d; lock a hash of it", ErrInvalid, len(key), MaxKeyLen)
	}
	return nil
}

func checkOwner(owner string) error {
	if len(owner) > MaxOwnerLen {
		return fmt.Errorf("%w: the owner has %d bytes, more than %d", ErrInvalid, len(owner), MaxOwnerLen)
	}
	if !utf8.ValidString(owner) || strings.ContainsFunc(owner, unicode.IsControl) {
		return fmt.Errorf("%w: the owner %q is not printable text", ErrInvalid, owner)
	}
	return nil
}

func defaultOwner() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	owner := fmt.Sprintf("%s:%d:%s", host, os.Getpid(), filepath.Base(os.Args[0]))
	owner = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == utf8.RuneError {
			return '_'
		}
		return r
	}, owner)
	for len(owner) > MaxOwnerLen {
		_, size := utf8.DecodeLastRuneInString(owner)
		owner = owner[:len(owner)-size]
	}
	return owner
}
