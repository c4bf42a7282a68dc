//go:build unix

package main

import (
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/spf13/cobra"
)

const runHelp = `Run waits until it holds the lock KEY, runs PROGRAM, releases the lock when
PROGRAM has ended, and ends with PROGRAM's exit code.

The environment variables HOLDFAST_KEY and HOLDFAST_TOKEN (the fencing token,
where the backend has one) are added for PROGRAM; its standard streams, its
arguments, the rest of its environment and descriptors that were opened for it
are passed on as they are. It runs in a process group of its own.

The lock is renewed until PROGRAM has ended, however long that takes. Processes
that PROGRAM leaves behind in the background are not waited for, and not guarded.

Without --url and ` + urlVariable + ` the lock is a file in .local/state/holdfast of the
user's home directory: it holds for all programs of that user on this machine.

SIGNALS
  Signals sent to holdfast go on to PROGRAM's process group, once each; the lock
  stays held until PROGRAM has ended because of them. Before there is a PROGRAM,
  HUP, INT, QUIT and TERM end the wait, and others are ignored. At a terminal
  PROGRAM is the foreground job, so that keys such as Ctrl-C reach it directly.
  While it is suspended by Ctrl-Z the lock is not renewed; if it has been lost
  by the time the job is resumed, PROGRAM is killed. Where holdfast was started to
  ignore HUP or INT (nohup), so is PROGRAM; other signals it is not told to ignore.

IF THE LOCK IS LOST
  PROGRAM's process group gets SIGTERM, and SIGKILL after --grace; on Linux so do
  processes that descend from PROGRAM and have left its group, as the command of
  timeout(1) does, but not daemons, which have lost their ancestors. On backends
  that promise "leased", both happen before anyone else can get the lock. What a
  holdfast that was stopped, or suspended with the machine, learns too late is
  taken off the grace: PROGRAM may be killed at once. Then holdfast exits 76,
  whatever PROGRAM's own exit code. It does so too if the loss shows only when the
  lock is released. A lock that is held longer than --max-hold counts as lost. A
  PROGRAM that has become another user's (sudo) only root can stop: run holdfast
  under sudo, and not sudo under holdfast.

IF HOLDFAST ITSELF IS KILLED (SIGKILL)
  Nobody renews the lock any more, and others get it within the TTL; at once if it
  is a file. On Linux
  the kernel then kills PROGRAM at once with SIGKILL: not SIGTERM, which it could
  ignore with nobody left to insist. This reaches PROGRAM itself, not processes
  that it has started, and no PROGRAM that changes its user or group (setuid). On
  other systems PROGRAM runs on: let what it writes to check HOLDFAST_TOKEN.

EXIT CODES
  n      PROGRAM's own exit code
  128+n  PROGRAM died of signal n, or signal n ended the wait for the lock
   64    the command line is wrong
   69    the backend could not be reached within the wait
   75    somebody else held the lock for the whole wait
   76    the lock was lost, or --max-hold was over, while PROGRAM ran
   78    the URL is wrong, or the backend refuses it (login, TLS, permission)
  126    PROGRAM cannot be executed
  127    PROGRAM was not found`

const runExample = `  holdfast run nightly-report -- ./report.sh --all
  holdfast run --url redis://localhost:6379 nightly-report -- ./report.sh --all
  HOLDFAST_URL=redis://localhost:6379 holdfast run --no-wait backup -- pg_dump -f /backup/db.sql`

// runFlags is what the command line of run says.
type runFlags struct {
	url                       string
	ttl, wait, grace, maxHold time.Duration
	noWait                    bool
}

func newRun(open opener, r *report) *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:     "run [flags] KEY -- PROGRAM [ARGUMENT...]",
		Short:   "Run a program while holding a lock",
		Long:    runHelp,
		Example: runExample,
		// Of keys nothing is known; after them comes a program.
		ValidArgsFunction: completeRun,
		RunE: func(cmd *cobra.Command, args []string) error {
			s := &service{open: open, report: r}
			j, err := newJob(cmd, flags, args, s)
			if err != nil {
				return err
			}
			return run(j, s)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	addURL(cmd, &flags.url)
	f.DurationVar(&flags.ttl, "ttl", 0, "how long (`D`, as in 15s) a holder that died keeps others out\n(default: the URL's ttl, or "+lock.DefaultTTL.String()+")")
	f.DurationVar(&flags.wait, "wait", 0, "wait at most `D` for the lock (default: until it is held)")
	f.BoolVar(&flags.noWait, "no-wait", false, "try once, without waiting")
	f.DurationVar(&flags.maxHold, "max-hold", 0, "stop PROGRAM, as if the lock were lost, when it has run for `D`")
	f.DurationVar(&flags.grace, "grace", 0, "send SIGKILL `D` after SIGTERM if PROGRAM is stopped (default: a\nquarter of the TTL); a long one leaves less time for renewals")
	return cmd
}

// completeRun offers nothing for the key, and files for the program and its arguments.
func completeRun(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// newJob checks everything that can be checked before the lock is asked for, so
// that nobody waits for a lock only to hear of a typing error.
func newJob(cmd *cobra.Command, flags runFlags, args []string, s *service) (*job, error) {
	key, argv, err := split(args, cmd.ArgsLenAtDash())
	if err != nil {
		return nil, err
	}
	j := &job{key: key, argv: argv, wait: lock.NoLimit, maxHold: flags.maxHold}
	given := cmd.Flags().Changed
	switch {
	case given("wait") && given("no-wait"):
		return nil, failf(exitUsage, "give --wait or --no-wait, not both")
	case flags.wait < 0:
		return nil, failf(exitUsage, "--wait %v is negative; give 0 or more", flags.wait)
	case given("max-hold") && flags.maxHold <= 0:
		return nil, failf(exitUsage, "--max-hold %v is not above zero; leave it out for no limit", flags.maxHold)
	case given("wait"):
		j.wait = flags.wait
	case flags.noWait:
		j.wait = 0
	}
	if s.url, err = chooseURL(flags.url); err != nil {
		return nil, err
	}
	if s.url, j.ttl, err = applyTTL(s.url, flags.ttl, given("ttl")); err != nil {
		return nil, err
	}
	if j.grace, err = chooseGrace(flags.grace, given("grace"), j.ttl); err != nil {
		return nil, err
	}
	if j.path, err = lookUp(argv[0]); err != nil {
		return nil, err
	}
	return j, nil
}

// split takes the key and the program from the arguments. dash says how many
// arguments precede the first "--". A key that looks like a flag is written after
// a "--" of its own: holdfast run -- -key -- program.
func split(args []string, dash int) (key string, argv []string, err error) {
	if dash == 0 && len(args) > 1 && args[1] == "--" {
		args, dash = append(args[:1:1], args[2:]...), 1
	}
	switch {
	case dash < 0 && len(args) > 1:
		return "", nil, failf(exitUsage, "put -- between the key and the program, as in: holdfast run %q -- %q", args[0], args[1])
	case dash < 0 || dash == 0 || len(args) == dash:
		return "", nil, failf(exitUsage, "give a key and a program, as in: holdfast run KEY -- PROGRAM")
	case dash > 1:
		return "", nil, failf(exitUsage, "give one key before --, not %d arguments; quote a key with spaces", dash)
	}
	if err := lock.CheckKey(args[0]); err != nil {
		return "", nil, failf(exitUsage, "the key cannot be used: %v", err)
	}
	return args[0], args[1:], nil
}
