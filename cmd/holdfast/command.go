//go:build unix

package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
)

// execute runs the command line and returns the exit code.
func execute(args []string, open opener) int {
	r := newReport(os.Stderr)
	defer r.close()
	root := newRoot(open, r)
	root.SetArgs(args)
	return exitCode(root.Execute(), r)
}

const rootHelp = `Holdfast runs programs under locks that several processes or machines share: what
must not happen twice at once, happens once at a time.

Where the locks are, a URL says: in Redis (redis://), PostgreSQL (postgres://), etcd
(etcd://) or ZooKeeper (zk://), or in files that hold for one machine (file:///dir).

MESSAGES
  What holdfast itself has to say goes to stderr: one line a message, beginning
  with "holdfast:". With --log json it is one JSON object a line, with "time",
  "level", "msg", and "logger": "holdfast"; durations are in seconds. With -v it
  tells of every event: contended, unanswered (the server cannot be asked), acquired,
  renewed, renew-failed, jeopardy (a third of the lease is left), lost, released;
  and of PROGRAM's start, its end, and signals that go on to it.`

const rootExample = `  holdfast run nightly-report -- ./report.sh --all
  holdfast run --url redis://localhost:6379 --no-wait backup -- ./backup.sh
  holdfast inspect nightly-report
  holdfast wait --timeout 10m nightly-report`

func newRoot(open opener, r *report) *cobra.Command {
	root := &cobra.Command{
		Use:               "holdfast",
		Short:             "Run programs under distributed locks",
		Long:              rootHelp,
		Example:           rootExample,
		SilenceErrors:     true, // exitCode reports, in one line
		SilenceUsage:      true,
		DisableAutoGenTag: true, // see builtFrom
		RunE: func(*cobra.Command, []string) error {
			return errors.New("say what to do, as in: holdfast run KEY -- PROGRAM")
		},
	}
	f := root.PersistentFlags()
	f.BoolVarP(&r.verbose, "verbose", "v", false, "tell of every event of the lock, on stderr")
	f.Var(&r.format, "log", "write messages as text or json")
	complete(root, "log", string(formatText), string(formatJSON))
	root.AddCommand(newRun(open, r), newInspect(open, r), newWait(open, r), newVersion(), newManual())
	return root
}

// complete has shells offer values for a flag. Its error would be about the name.
func complete(cmd *cobra.Command, flag string, values ...string) {
	if err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err)
	}
}

// addURL adds the flag that says where the lock is. pflag shows what is between
// backquotes as the name of the value.
func addURL(cmd *cobra.Command, rawURL *string) {
	cmd.Flags().StringVar(rawURL, "url", "", "where the lock is: a `URL` such as redis://host:6379 (default\n$"+urlVariable+", or files of the user's, for this machine alone; put\npasswords into the variable: others can see command lines)")
}
