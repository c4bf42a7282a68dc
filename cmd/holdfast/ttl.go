//go:build unix

package main

import (
	"net/url"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// applyTTL returns rawURL with the TTL of the flag in its query, and the TTL that
// the lock will have.
//
// It works on the text: backends have URLs that net/url would not write back as
// they were, and url.Parse's errors quote passwords. A query that cannot be read
// is left for the opener to complain of.
func applyTTL(rawURL string, flag time.Duration, given bool) (string, time.Duration, error) {
	rest, fragment, _ := strings.Cut(rawURL, "#")
	base, query, _ := strings.Cut(rest, "?")
	values, _ := url.ParseQuery(query)
	inURL := values.Has("ttl")
	switch {
	case given && inURL:
		return "", 0, failf(exitUsage, "the TTL is given twice; give --ttl or the URL's ttl, not both")
	case inURL:
		ttl, err := time.ParseDuration(values.Get("ttl"))
		if err != nil || ttl <= 0 {
			return "", 0, failf(exitConfig, "the URL's ttl is not a duration above zero, as in 15s")
		}
		return rawURL, ttl, nil
	case !given:
		return rawURL, lock.DefaultTTL, nil
	}
	if flag < lock.MinTTL || flag > lock.MaxTTL {
		return "", 0, failf(exitUsage, "--ttl %v is out of range; give %v to %v", flag, lock.MinTTL, lock.MaxTTL)
	}
	if query != "" {
		query += "&"
	}
	withTTL := base + "?" + query + "ttl=" + flag.String()
	if fragment != "" {
		withTTL += "#" + fragment
	}
	return withTTL, flag, nil
}

// chooseGrace returns the time between SIGTERM and SIGKILL after a loss. Together
// with killTime it is the margin asked of the lock, which must be less than half
// of the TTL.
func chooseGrace(flag time.Duration, given bool, ttl time.Duration) (time.Duration, error) {
	if !given {
		return ttl / 4, nil
	}
	if limit := ttl/2 - killTime(ttl); flag < 0 || flag >= limit {
		return 0, failf(exitUsage, "--grace %v does not fit the TTL of %v; give less than %v, or a longer --ttl", flag, ttl, limit)
	}
	return flag, nil
}

// killTime is what is left of the lock after SIGKILL, for the kernel to end the
// processes and for holdfast to be scheduled on a busy machine.
func killTime(ttl time.Duration) time.Duration {
	return min(ttl/20, time.Second)
}
