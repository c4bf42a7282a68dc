//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
	"github.com/spf13/cobra"
)

const inspectHelp = `Inspect says who holds the lock KEY, since when and with which fencing token,
and how many wait for it at the server, as far as the backend knows. It does not
take the lock.

With --json it prints an object: "key"; "holders", a list of objects with "owner",
"token", "since" and "shared", empty if the lock is free; and "waiters". What the
backend does not know is left out.

EXIT CODES
    0    the lock is held, or it is free
   64    the command line is wrong
   69    the backend could not be reached
   74    the answer could not be written to standard output
   78    the URL is wrong, or the backend refuses it (login, TLS, permission)`

const inspectExample = `  holdfast inspect nightly-report
  holdfast inspect --url redis://localhost:6379 --json nightly-report | jq -r '.holders[].owner'`

func newInspect(open opener, r *report) *cobra.Command {
	var rawURL string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "inspect [flags] KEY",
		Short:   "Say who holds a lock",
		Long:    inspectHelp,
		Example: inspectExample,
		Args:    oneKey,

		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			where, err := chooseURL(rawURL)
			if err != nil {
				return err
			}
			info, err := inspect(cmd.Context(), &service{open, where, r}, args[0])
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), info)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), describe(info, time.Now()))
			return err
		},
	}
	cmd.Flags().SortFlags = false
	addURL(cmd, &rawURL)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// oneKey checks the arguments of a command for one lock.
func oneKey(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return failf(exitUsage, "give one key, not %d arguments; quote a key with spaces", len(args))
	}
	if err := lock.CheckKey(args[0]); err != nil {
		return failf(exitUsage, "the key cannot be used: %v", err)
	}
	return nil
}

func inspect(ctx context.Context, s *service, key string) (lock.Info, error) {
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	locker, err := s.openOnce(ctx)
	if err != nil {
		return lock.Info{}, notInspected(key, err)
	}
	defer locker.Close()
	info, err := locker.Inspect(ctx, key)
	if err != nil {
		return lock.Info{}, notInspected(key, err)
	}
	return info, nil
}

func notInspected(key string, err error) *failure {
	if errors.Is(err, lock.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) {
		return failf(exitUnavailable, "the lock %q could not be inspected: %s (%s)", key, remedy(err), plain(err))
	}
	return failf(exitConfig, "the lock %q could not be inspected: correct --url or %s (%s)", key, urlVariable, plain(err))
}

// describe says in a line what there is to know.
func describe(info lock.Info, now time.Time) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%q is ", info.Key)
	if len(info.Holders) == 0 {
		b.WriteString("free")
	}
	for i, h := range info.Holders {
		if i > 0 {
			b.WriteString(", and ")
		}
		fmt.Fprintf(&b, "held by %s", oneLine(h.Owner))
		if h.Shared {
			b.WriteString(", shared")
		}
		if !h.Since.IsZero() {
			fmt.Fprintf(&b, ", since %s (%v)", h.Since.Local().Format(time.RFC3339), max(0, now.Sub(h.Since)).Round(time.Second))
		}
		if h.Token != 0 {
			fmt.Fprintf(&b, ", with token %d", h.Token)
		}
	}
	if info.Waiters > 0 {
		fmt.Fprintf(&b, "; waiting: %d", info.Waiters)
	}
	return b.String()
}

// jsonInfo is lock.Info as --json prints it.
type jsonInfo struct {
	Key     string       `json:"key"`
	Holders []jsonHolder `json:"holders"`
	Waiters int          `json:"waiters"`
}

type jsonHolder struct {
	Owner  string     `json:"owner,omitempty"`
	Token  lock.Token `json:"token,omitempty"`
	Since  time.Time  `json:"since,omitzero"`
	Shared bool       `json:"shared"`
}

func printJSON(w io.Writer, info lock.Info) error {
	out := jsonInfo{Key: info.Key, Holders: []jsonHolder{}, Waiters: info.Waiters}
	for _, h := range info.Holders {
		out.Holders = append(out.Holders, jsonHolder(h))
	}
	return json.NewEncoder(w).Encode(out)
}
