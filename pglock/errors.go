package pglock

import (
	"crypto/tls"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// errPooled is for a backend that is not the session's own.
var errPooled = driver.Permanent(errors.New("a pooler gives each transaction another backend (transaction pooling), " +
	"and session locks need one of their own: connect to the server itself, or to a pool in session mode"))

// The codes of errors that mean something here.
const (
	codeLockTimeout  = "55P03"
	codeDeadlock     = "40P01"
	codeCancelled    = "57014"
	codeOutOfMemory  = "53200"
	codePermission   = "42501"
	codeBadDatabase  = "3D000"
	codeReadOnly     = "25006"
	codeBadParameter = "08P01"
)

// sliceOver says whether err ended a wait at the server with nothing wrong: its limit, an
// operator, or what the server took for a deadlock.
func sliceOver(err error) bool {
	code := codeOf(err)
	return code == codeLockTimeout || code == codeDeadlock || code == codeCancelled
}

func codeOf(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}

// refusal marks the error of a request after which nothing is held.
func refusal(err error) error {
	if driver.LeavesNothing(err) {
		return err
	}
	if mended, ok := permanent(err); ok {
		return driver.Permanent(mended)
	}
	if codeOf(err) != "" {
		return driver.Refused(err)
	}
	return err
}

// refused marks err, unless it is.
func refused(err error) error {
	if driver.LeavesNothing(err) {
		return err
	}
	return driver.Refused(err)
}

// unknown takes the mark off err: that a request which was to free something has had no
// effect, or was not even sent, means that it is still there.
func unknown(err error) error {
	if driver.LeavesNothing(err) {
		return errors.New(err.Error())
	}
	return err
}

// permanent says whether trying again will not help, and returns err with the remedy.
func permanent(err error) (mended error, ok bool) {
	code := codeOf(err)
	if code == "" {
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			return fmt.Errorf("%w; check the certificates, or sslmode", err), true
		}
		return nil, false
	}
	remedy := ""
	switch {
	case code == codeOutOfMemory:
		remedy = "the server has no room for more locks: raise max_locks_per_transaction, and start it again"
	case code == codePermission:
		remedy = "grant the role what tokens need, as pglock.Schema says, or do without tokens (token=off)"
	case code[:2] == "28":
		remedy = "correct user and password, or pg_hba.conf"
	case code == codeBadDatabase:
		remedy = "choose a database that the server has"
	case code == codeBadParameter:
		remedy = "is it a pooler, or no PostgreSQL?"
	case code[:2] == "42" || code[:2] == "3F":
		remedy = "what tokens need has been changed or dropped: apply pglock.Schema"
	default:
		return nil, false
	}
	return fmt.Errorf("%w; %s", err, remedy), true
}

// connectFault marks the error of a connection that was not made.
func connectFault(err error) error {
	if mended, ok := permanent(err); ok {
		return driver.Permanent(mended)
	}
	return driver.Refused(err)
}

// setupFault marks the error of a session that was not opened, wherever that failed.
func setupFault(err error) error {
	if driver.LeavesNothing(err) {
		return err
	}
	return connectFault(err)
}
