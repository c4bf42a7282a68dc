//go:build unix

package main

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/spf13/cobra"
)

const waitHelp = `Wait ends when nobody holds the lock KEY and nobody waits for it at the server.

It looks, as inspect does, at intervals that grow to a second, and never takes the
lock: nobody who wants it is held up, and a "holdfast run --no-wait" is not turned
away because of it. So a short moment between two holders can pass unseen, and
when it has ended the next may have the lock already: to have it, use run.

While the backend cannot be reached it waits for that too.

EXIT CODES
    0    the lock is free
   64    the command line is wrong
   69    the backend could not be reached, last, within the time
   75    the lock was held, last, when the time was over
   78    the URL is wrong, or the backend refuses it (login, TLS, permission)`

const waitExample = `  holdfast wait nightly-report && ./read-report.sh
  holdfast wait --url redis://localhost:6379 --timeout 10m migrations`

func newWait(open opener, r *report) *cobra.Command {
	var rawURL string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:     "wait [flags] KEY",
		Short:   "Wait until nobody holds a lock",
		Long:    waitHelp,
		Example: waitExample,
		Args:    oneKey,

		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			limit := lock.NoLimit
			if cmd.Flags().Changed("timeout") {
				limit = timeout
			}
			if timeout < 0 {
				return failf(exitUsage, "--timeout %v is negative; give 0 or more", timeout)
			}
			where, err := chooseURL(rawURL)
			if err != nil {
				return err
			}
			return wait(cmd.Context(), &service{open, where, r}, args[0], limit)
		},
	}
	cmd.Flags().SortFlags = false
	addURL(cmd, &rawURL)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "wait at most `D`, as in 10m; 0 looks once (default: until the lock is free)")
	return cmd
}

// wait returns nil when key is free. A limit of 0 is one look.
func wait(ctx context.Context, s *service, key string, limit time.Duration) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	locker, err := s.openWithin(ctx, limit)
	if err != nil {
		return notInspected(key, err)
	}
	defer locker.Close()
	if f := lookUntil(ctx, s, locker, key, limit); f != nil {
		return f
	}
	return nil
}

// lookUntil looks until key is free, and once if limit is 0. If ctx ends first it says
// what was seen last: not that a look was cut short.
func lookUntil(ctx context.Context, s *service, l lock.Locker, key string, limit time.Duration) (last *failure) {
	const shortest, longest = 20 * time.Millisecond, time.Second
	told := limit != lock.NoLimit // a bounded wait says so at its end
	for pause := shortest; ; pause = min(pause*3/2, longest) {
		f, err := look(ctx, l, key)
		if f == nil || f.code == exitConfig || limit == 0 {
			return f
		}
		if last == nil || ctx.Err() == nil {
			last = f
		}
		if f.code == exitUnavailable && !told {
			told = true
			s.report.say(slog.LevelInfo, "%s", unreachable(err))
		}
		if !sleep(ctx, pause/2+rand.N(pause)) { // not in step with others that wait
			return last
		}
	}
}

// look returns nil if key is free, and otherwise why nobody can say so.
func look(ctx context.Context, l lock.Locker, key string) (*failure, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	info, err := l.Inspect(ctx, key)
	switch {
	case err != nil:
		return notInspected(key, err), err
	case len(info.Holders) == 0 && info.Waiters == 0: // one who waits is as good as a holder
		return nil, nil
	}
	return failf(exitBusy, "%s: try again later, or wait longer with --timeout", describe(info, time.Now())), nil
}
