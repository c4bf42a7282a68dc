package zklock

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// remedies are for answers that will be the same tomorrow.
var remedies = map[error]string{
	zk.ErrNoAuth:     "give the locks' user all permissions on the root and below it, or others' credentials",
	zk.ErrInvalidACL: "give credentials that an ACL can name, or another ACL",
	zk.ErrAuthFailed: "correct the credentials, or their scheme",
}

// fault marks an error of package zk with what it proves. Without a mark, the request may
// have been carried out, or may be yet.
func (s *session) fault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errOver):
		if cause := s.over(); cause != nil {
			err = cause
		}
		return driver.Refused(err)
	case errors.Is(err, zk.ErrSessionExpired), errors.Is(err, zk.ErrSessionMoved):
		s.lose(err) // moved: servers do not tell a client so, but close its connection (ZOOKEEPER-710)
		return driver.Refused(err)
	}
	if mended, ok := permanent(err); ok {
		return driver.Permanent(mended)
	}
	return err
}

// permanent says whether trying again will not help, and returns err with the remedy.
func permanent(err error) (mended error, ok bool) {
	for fault, remedy := range remedies {
		if errors.Is(err, fault) {
			return fmt.Errorf("%w; %s", err, remedy), true
		}
	}
	return nil, false
}

// answers are what a server says that did not do what it was asked for.
var answers = []error{
	zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrNoChildrenForEphemerals,
	zk.ErrInvalidACL, zk.ErrInvalidFlags, zk.ErrAuthFailed, zk.ErrBadArguments, zk.ErrSessionExpired, zk.ErrSessionMoved,
	zk.ErrAPIError, zk.ErrInvalidPath, errOver,
}

// unanswered says whether err leaves it open what the server did.
func unanswered(err error) bool {
	return !driver.LeavesNothing(err) && !unknownCode(err) &&
		!slices.ContainsFunc(answers, func(a error) bool { return errors.Is(err, a) })
}

// unknownCode says whether err is an answer that package zk does not know.
func unknownCode(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "unknown error: ")
}
