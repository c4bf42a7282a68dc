package redislock

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-go/holdfast/lock/driver"
)

// remedies are for replies that will be the same tomorrow. Their marks are looked for
// anywhere in a reply: a server before 7.0 wraps the errors of a script's commands.
var remedies = []struct{ mark, remedy string }{
	{"NOAUTH", "give a password, in the URL or in the client's options"},
	{"WRONGPASS", "correct user and password"},
	{"ERR AUTH", "correct user and password"},
	{"ERR invalid password", "correct user and password"},
	{"no password is set", "leave out the password, or set one at the server"},
	{"NOPERM", aclRemedy},
	{"ACL failure in script", aclRemedy},
	{"can't run this command", aclRemedy},
	{"can't access at least one of the keys", aclRemedy},
	{"unknown command", "locks need scripts, which this server does not have, or has under other names"},
	{"DB index is out of range", "choose a database that the server has"},
	{"SELECT is not allowed in cluster mode", clusterRemedy},
	{" MOVED ", clusterRemedy},
	{" ASK ", clusterRemedy},
	{"CROSSSLOT", clusterRemedy},
	{" DENIED ", "set a password at the server, or end its protected mode"},
}

const (
	aclRemedy     = "allow the user the keys and commands that the comment of package redislock lists"
	clusterRemedy = "the server is a node of a cluster: give redislock.New a redis.ClusterClient"
)

// fault marks err as the function does, for the client that it came from.
func (b *backend) fault(err error) error {
	if b.follows && (redis.HasErrorPrefix(err, "MOVED ") || redis.HasErrorPrefix(err, "ASK ")) {
		return driver.Refused(err)
	}
	return fault(err)
}

// fault marks err with what it proves about a request that was sent once (see once).
// Without a mark, the request may have been carried out, or may be yet.
func fault(err error) error {
	if mended, ok := permanent(err); ok {
		return driver.Permanent(mended)
	}
	if refused(err) {
		return driver.Refused(err)
	}
	return err
}

// permanent says whether trying again will not help, and returns err with the remedy.
func permanent(err error) (mended error, ok bool) {
	if reply, ok := errors.AsType[redis.Error](err); ok {
		return permanentReply(reply)
	}
	if errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("%w; it was given to redislock.New, and must stay open as long as the Locker", err), true
	}
	if badTLS(err) {
		return fmt.Errorf("%w; check the certificates, and that both sides speak TLS", err), true
	}
	return nil, false
}

func permanentReply(reply error) (mended error, ok bool) {
	text := reply.Error()
	for _, r := range remedies {
		if !strings.Contains(" "+text, r.mark) {
			continue
		}
		// Redis quotes the arguments of a command that it does not know: of AUTH, secrets.
		if command, _, quotes := strings.Cut(text, ", with args beginning with:"); quotes {
			reply = errors.New(command)
		}
		return fmt.Errorf("%w; %s", reply, r.remedy), true
	}
	return nil, false
}

// refused says whether err proves that the request had no effect. Every reply that is
// an error proves it: our scripts give none after the first write that counts, or undo
// that. Most such states pass, as LOADING, READONLY, OOM, MISCONF, BUSY and CLUSTERDOWN do; of those that we
// do not know it is assumed.
func refused(err error) bool {
	if _, ok := errors.AsType[redis.Error](err); ok {
		return true
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// badTLS says whether err ended a handshake in a way that others will end, too.
// Nothing of ours is sent on a connection before the server has answered on it.
func badTLS(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return true
	}
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error" && slices.ContainsFunc(alerts, func(alert string) bool {
		return strings.Contains(op.Err.Error(), alert)
	})
}

// alerts are what a server says of a client that it will not have.
var alerts = []string{"certificate", "handshake failure", "protocol version", "unrecognized name", "access denied"}

func anyCrossesSlots(errs []error) bool {
	return slices.ContainsFunc(errs, func(err error) bool {
		return err != nil && strings.Contains(err.Error(), "CROSSSLOT")
	})
}

// foreign is for a name under which there is something else.
func foreign(name any) error {
	return driver.Permanent(fmt.Errorf("what Redis has as %q is not Holdfast's; delete it, or choose another prefix", name))
}

// unexpected is for an answer that our scripts do not give. Nothing is proved by it.
func unexpected(reply any) error {
	return fmt.Errorf("the server's answer, a %T, is none of the script's", reply)
}
