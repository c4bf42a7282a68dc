//go:build unix

package main

import (
	"fmt"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

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
