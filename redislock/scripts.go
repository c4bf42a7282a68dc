package redislock

import (
	"context"
	"crypto/sha1"
	_ "embed" // the scripts
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed acquire.lua
var acquireSource string

//go:embed renew.lua
var renewSource string

//go:embed release.lua
var releaseSource string

//go:embed inspect.lua
var inspectSource string

var (
	acquireScript = newScript(acquireSource)
	renewScript   = newScript(renewSource)
	releaseScript = newScript(releaseSource)
	inspectScript = newScript(inspectSource)
)

// script is run by its hash. A server that does not know it, for it was restarted or
// its scripts were flushed, says so without having done anything, and is sent the
// source. It is redis.Script with commands that are sent once.
type script struct{ source, hash string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source, hex.EncodeToString(sum[:])}
}

// call is one run of a script, and what came of it.
type call struct {
	script *script
	keys   int
	args   []any // the command and its code, once they are known, and all that follows
	reply  any
	err    error
}

// newCall returns a call with names as keys.
func newCall(s *script, keys []any, args ...any) *call {
	c := &call{script: s, keys: len(keys), args: make([]any, 3, 3+len(keys)+len(args))}
	c.args = append(append(c.args, keys...), args...)
	return c
}

// run makes the call.
func (c *call) run(ctx context.Context, client redis.UniversalClient) {
	send := func(command, code string) {
		cmd := newOnce(ctx, command, code, c)
		_ = client.Process(ctx, cmd) // the error is the command's, too
		c.reply, c.err = cmd.Result()
	}
	if send("evalsha", c.script.hash); unknownScript(c.err) {
		send("eval", c.script.source)
	}
}

// runAll makes all calls in one round trip. They go through a pipeline even if there
// is one only: go-redis has a pool of connections for pipelines, so that what else an
// application does with its client does not keep the renewals waiting.
func runAll(ctx context.Context, client redis.UniversalClient, calls []*call) {
	send := func(command string, code func(*script) string, calls []*call) {
		pipe := client.Pipeline()
		cmds := make([]once, len(calls))
		for i, c := range calls {
			cmds[i] = newOnce(ctx, command, code(c.script), c)
			_ = pipe.Process(ctx, cmds[i]) // only queues it
		}
		_, err := pipe.Exec(ctx)
		for i, c := range calls {
			c.reply, c.err = cmds[i].Result()
			// If the server refuses the connection (the password was changed), go-redis
			// leaves the commands with neither an error nor a reply.
			if c.reply == nil && c.err == nil {
				c.err = err
			}
		}
	}
	send("evalsha", func(s *script) string { return s.hash }, calls)
	var again []*call
	for _, c := range calls {
		if unknownScript(c.err) {
			again = append(again, c)
		}
	}
	if len(again) > 0 {
		send("eval", func(s *script) string { return s.source }, again)
	}
}

func unknownScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// once is a command that a client does not send again by itself, whatever its
// MaxRetries. Of two copies of a request the second could be told "held" while the
// first, on a connection that seemed dead, is yet to come and take the lock. Sent once,
// a request that was answered is over, and the answer is the truth about it.
type once struct{ *redis.Cmd }

// NoRetry is what go-redis asks a command.
func (once) NoRetry() bool { return true }

func newOnce(ctx context.Context, command, code string, c *call) once {
	c.args[0], c.args[1], c.args[2] = command, code, c.keys
	cmd := redis.NewCmd(ctx, c.args...)
	cmd.SetFirstKeyPos(3) // for the slot
	return once{cmd}
}
