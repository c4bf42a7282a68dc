package etcdlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// answers are errors of the server that will be the same tomorrow.
var answers = []struct {
	err    error
	remedy string
}{
	{rpctypes.ErrPermissionDenied, "grant the user's role readwrite on the prefix, as the comment of package etcdlock says"},
	{rpctypes.ErrAuthFailed, "correct user and password"},
	{rpctypes.ErrUserEmpty, "give user and password, in the URL or to the client"},
	{rpctypes.ErrUserNotFound, "correct the user"},
	{rpctypes.ErrAuthNotEnabled, "leave out user and password, or enable authentication at the server"},
	{rpctypes.ErrTooManyOps, "let the server take 128 operations in a transaction, as it does by default"},
	{rpctypes.ErrRequestTooLarge, "let the server take requests of some kilobytes"},
}

// marks are in the texts of connections that others will not get, either.
var marks = []struct{ mark, remedy string }{
	{"first record does not look like a TLS handshake", "the server does not speak TLS: write etcd:// for etcds://, or give the client no TLS configuration"},
	{"failed to verify certificate", certificateRemedy},
	{"x509: ", certificateRemedy},
	{"unknown service etcdserverpb", "the server is none of etcd v3"},
}

const (
	certificateRemedy = "check the server's certificate, and the authorities that this side trusts"
	alertRemedy       = "give the certificate that the server asks of its clients, and check that it accepts it"
)

// alerts are what a server says of TLS that it will say to the next connection as well.
var alerts = [...]string{
	"handshake failure", "bad certificate", "unsupported certificate", "revoked certificate", "expired certificate",
	"unknown certificate", // also begins that its authority is unknown
	"certificate required", "access denied", "protocol version not supported", "insufficient security level", "no application protocol",
}

// unready are in the texts of connections that came to an end before they carried a request.
// A client of TLS 1.3 is done with its handshake before the server has judged its certificate,
// and may send by then. But grpc gives a connection no request before it has read the server's
// settings, and those a server sends when its own handshake is done.
var unready = [...]string{handshakeFailed + ": ", "error reading server preface: "}

// refusedByAlert says whether a server has refused a connection by an alert, for good. The same
// words may come from a connection that has carried requests: they are what a server says, too,
// if a byte was changed on the way, of which nothing can be concluded.
func refusedByAlert(message string) bool {
	for _, when := range unready {
		_, alert, found := strings.Cut(message, when+"remote error: tls: ")
		if found && slices.ContainsFunc(alerts[:], func(a string) bool { return strings.HasPrefix(alert, a) }) {
			return true
		}
	}
	return false
}

// remedy says what to do if err will be the same when it is tried again.
func remedy(err error) (text string, permanent bool) {
	for _, a := range answers {
		if errors.Is(err, a.err) {
			return a.remedy, true
		}
	}
	message := ""
	if err != nil {
		message = err.Error()
	}
	for _, m := range marks {
		if strings.Contains(message, m.mark) {
			return m.remedy, true
		}
	}
	if refusedByAlert(message) {
		return alertRemedy, true
	}
	return "", false
}

// fault marks err with what it proves about a request. Without a mark, the request may have
// been carried out, or may be yet: so it is when the request's time was over, whatever is wrong
// with the connection by now. It may have been sent before.
func (b *backend) fault(err error) error {
	if err == nil {
		return nil
	}
	if err = b.explain(err); isContextError(err) {
		return err
	}
	return mark(err)
}

// mark marks the error of a request that did not end by its context.
func mark(err error) error {
	if text, permanent := remedy(err); permanent {
		return driver.Permanent(fmt.Errorf("%w; %s", err, text))
	}
	if refused(err) {
		return driver.Refused(err)
	}
	return err
}

// refused says whether err proves that a request had no effect.
func refused(err error) bool {
	if server, ok := errors.AsType[rpctypes.EtcdError](err); ok {
		switch {
		case errors.Is(server, rpctypes.ErrNoSpace):
			return false // a server that has just become full carries the request out, and then says so
		case server.Code() == codes.Unavailable, server.Code() == codes.Canceled, server.Code() == codes.DeadlineExceeded:
			return false // it has given up waiting for the others of its cluster, which may be about to carry it out
		}
		return true
	}
	return strings.Contains(err.Error(), "transport: Error while dialing") || strings.Contains(err.Error(), handshakeFailed)
}

const handshakeFailed = "authentication handshake failed"

var errClientClosed = driver.Permanent(errors.New("the etcd client is closed; it was given to etcdlock.New, and must stay open as long as the Locker"))

// explain adds to an error that says only that there was no answer in time what is wrong with
// the connection: a client that waits for one does not tell. It has the next request dial soon,
// too, for which a client that was not made for it may wait up to two minutes.
func (b *backend) explain(err error) error {
	conn := b.client.ActiveConnection()
	if conn == nil || conn.GetState() != connectivity.TransientFailure {
		return err
	}
	if isContextError(err) {
		// In this state the answer comes at once, from this side, and is why the last attempt to
		// connect has failed.
		ctx, cancel := context.WithTimeout(b.life, 20*time.Millisecond)
		_, why := etcdserverpb.NewKVClient(conn).Range(ctx, &etcdserverpb.RangeRequest{Key: []byte(barrierName(b.prefix, ""))}, grpc.WaitForReady(false))
		cancel()
		if status.Code(why) == codes.Unavailable {
			err = &unconnected{err, status.Convert(why).Message()}
		}
	}
	if b.mayDial() {
		conn.ResetConnectBackoff()
	}
	return err
}

// mayDial says whether it is long enough since it last did: many may fail at once.
func (b *backend) mayDial() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := driver.Now()
	if b.dialed != 0 && now.Sub(b.dialed) < 100*time.Millisecond {
		return false
	}
	b.dialed = now
	return true
}

// unconnected is the end of a request's time, and why there is no connection.
type unconnected struct {
	err error
	why string
}

func (u *unconnected) Error() string { return u.err.Error() + ": " + u.why }
func (u *unconnected) Unwrap() error { return u.err }

func isContextError(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}
