//go:build unix

package main

import (
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

const manualHelp = `Manual writes the manual pages, holdfast.1 and one for each command, to DIRECTORY.`

const manualExample = `  sudo holdfast manual /usr/local/share/man/man1
  man holdfast-run`

func newManual() *cobra.Command {
	return &cobra.Command{
		Use:     "manual DIRECTORY",
		Short:   "Write the manual pages",
		Long:    manualHelp,
		Example: manualExample,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManual(cmd.Root(), args[0])
		},
	}
}

func writeManual(root *cobra.Command, dir string) error {
	if info, err := os.Stat(dir); err != nil {
		return failf(exitUsage, "no manual was written: make the directory first (%s)", plain(err))
	} else if !info.IsDir() {
		return failf(exitUsage, "no manual was written: %q is not a directory", dir)
	}
	root.InitDefaultCompletionCmd()
	forManual(root)
	header := &doc.GenManHeader{Section: "1", Source: "Holdfast", Manual: "Holdfast Manual", Date: builtFrom()}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return failf(exitUsage, "the manual was not written in full: let the user write to the directory (%s)", plain(err))
	}
	return nil
}

// builtFrom returns the time of the commit that this command was built from, for the manual to
// be the same whenever it is made. nil: it is not known.
func builtFrom() *time.Time {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, s := range info.Settings {
		if t, err := time.Parse(time.RFC3339, s.Value); err == nil && s.Key == "vcs.time" {
			return &t
		}
	}
	return nil
}

// withValues has the manual show the name of a flag's value where the generator shows the
// default, which the text of the flag tells in words.
func withValues(flags *pflag.FlagSet) {
	flags.VisitAll(func(f *pflag.Flag) {
		if name, _ := pflag.UnquoteUsage(f); name != "" {
			f.DefValue = name
		}
	})
}

// forManual makes of the help of cmd and of all below it what the generator reads, which
// is Markdown: a line in capitals, alone at the margin, is the heading of a section, and
// what is indented below it is its text. Tables stay indented, and so as they are.
func forManual(cmd *cobra.Command) {
	cmd.Long = sections(cmd.Long)
	withValues(cmd.Flags())
	withValues(cmd.PersistentFlags())
	for _, sub := range cmd.Commands() {
		forManual(sub)
	}
}

func sections(help string) string {
	var b strings.Builder
	inSection, inTable := false, false
	for line := range strings.Lines(help) {
		text := strings.TrimSpace(line)
		indented := strings.HasPrefix(line, " ")
		switch {
		case text == "":
			inTable = false
		case !indented && text == strings.ToUpper(text):
			inSection, inTable = true, strings.HasPrefix(text, "EXIT CODES")
			line = "# " + text + "\n\n"
		case inTable:
			line = "    " + line
		case inSection && indented:
			line = text + "\n"
		}
		b.WriteString(line)
	}
	return b.String()
}
