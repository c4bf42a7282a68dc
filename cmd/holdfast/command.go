//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/holdfast-go/holdfast/lock/filelock"
	"github.com/spf13/cobra"
)

// opener opens the Locker that a URL names.
type opener func(ctx context.Context, rawURL string) (lock.Locker, error)

// urlVariable names the lock service where --url does not.
const urlVariable = "HOLDFAST_URL"

// execute runs the command line and returns the exit code.
func execute(args []string, open opener) int {
	root := newRoot(open)
	root.SetArgs(args)
	return exitCode(root.Execute(), os.Stderr)
}

func newRoot(open opener) *cobra.Command {
	root := &cobra.Command{
		Use:           "holdfast",
		Short:         "Run programs under distributed locks",
		SilenceErrors: true, // exitCode reports, in one line
		SilenceUsage:  true,
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to do, as in: holdfast run KEY -- PROGRAM")
		},
	}
	root.AddCommand(newRun(open), newInspect(open), newVersion())
	return root
}

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
  by the time the job is resumed, PROGRAM is killed.

IF THE LOCK IS LOST
  PROGRAM's process group gets SIGTERM, and SIGKILL after --grace. On backends
  that promise "leased", both happen before anyone else can get the lock. Then
  holdfast exits 76, whatever PROGRAM's own exit code. It does so too if the
  loss shows only when the lock is released.

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
   76    the lock was lost while PROGRAM ran
   78    the URL is wrong, or the backend refuses it (login, TLS, permission)
  126    PROGRAM cannot be executed
  127    PROGRAM was not found`

const runExample = `  holdfast run nightly-report -- ./report.sh --all
  holdfast run --url redis://localhost:6379 nightly-report -- ./report.sh --all
  HOLDFAST_URL=redis://localhost:6379 holdfast run --no-wait backup -- pg_dump -f /backup/db.sql`

// runFlags is what the command line of run says.
type runFlags struct {
	url              string
	ttl, wait, grace time.Duration
	noWait           bool
}

func newRun(open opener) *cobra.Command {
	var flags runFlags
	cmd := &cobra.Command{
		Use:     "run [flags] KEY -- PROGRAM [ARGUMENT...]",
		Short:   "Run a program while holding a lock",
		Long:    runHelp,
		Example: runExample,
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := newJob(cmd, flags, args)
			if err != nil {
				return err
			}
			return run(j, open, cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	addURL(cmd, &flags.url)
	f.DurationVar(&flags.ttl, "ttl", 0, "how long (`D`, as in 15s) a holder that died keeps others out\n(default: the URL's ttl, or "+lock.DefaultTTL.String()+")")
	f.DurationVar(&flags.wait, "wait", 0, "wait at most `D` for the lock (default: until it is held)")
	f.BoolVar(&flags.noWait, "no-wait", false, "try once, without waiting")
	f.DurationVar(&flags.grace, "grace", 0, "send SIGKILL `D` after SIGTERM if the lock is lost (default: a\nquarter of the TTL); a long one leaves less time for renewals")
	return cmd
}

// addURL adds the flag that says where the lock is. pflag shows what is between
// backquotes as the name of the value.
func addURL(cmd *cobra.Command, rawURL *string) {
	cmd.Flags().StringVar(rawURL, "url", "", "where the lock is: a `URL` such as redis://host:6379 (default\n$"+urlVariable+", or files of the user's, for this machine alone; put\npasswords into the variable: others can see command lines)")
}

// newJob checks everything that can be checked before the lock is asked for, so
// that nobody waits for a lock only to hear of a typing error.
func newJob(cmd *cobra.Command, flags runFlags, args []string) (*job, error) {
	key, argv, err := split(args, cmd.ArgsLenAtDash())
	if err != nil {
		return nil, err
	}
	j := &job{key: key, argv: argv, wait: lock.NoLimit}
	given := cmd.Flags().Changed
	switch {
	case given("wait") && given("no-wait"):
		return nil, failf(exitUsage, "give --wait or --no-wait, not both")
	case flags.wait < 0:
		return nil, failf(exitUsage, "--wait %v is negative; give 0 or more", flags.wait)
	case given("wait"):
		j.wait = flags.wait
	case flags.noWait:
		j.wait = 0
	}
	if j.url, err = chooseURL(flags.url); err != nil {
		return nil, err
	}
	if j.url, j.ttl, err = applyTTL(j.url, flags.ttl, given("ttl")); err != nil {
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

// chooseURL returns where the lock is: where nothing is said, in files of the user's.
func chooseURL(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	if env, set := os.LookupEnv(urlVariable); env != "" {
		return env, nil
	} else if set { // whoever has set it wanted a server that others use, too
		return "", failf(exitUsage, "%s is set, and empty: name a backend in it, as in redis://localhost:6379, or unset it", urlVariable)
	}
	dir, err := filelock.UserDir()
	if err != nil {
		return "", failf(exitConfig, "no backend is named, and there can be none in files of the user's: give --url or set %s (%s)", urlVariable, plain(err))
	}
	return (&url.URL{Scheme: "file", Path: dir}).String(), nil
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of this build",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version())
			return err
		},
	}
}

// version tells what this binary was built from, as the toolchain recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "holdfast (built without module information)"
	}
	words := []string{"holdfast", info.Main.Version, info.GoVersion}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "vcs.revision":
			words = append(words, s.Value)
		case "vcs.modified":
			if s.Value == "true" {
				words = append(words, "modified")
			}
		}
	}
	return strings.Join(words, " ")
}
