package torture_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/holdfast-go/holdfast/conformance/torture"
)

const preface = `# Torture

A lock is believed for how it was broken. This page is written by a run, not by hand:

    %s

This one was on %s, with %d processors.

Workers, which are processes of their own (goroutines where the backend lives in memory), contend for a few keys
while they are killed, stopped, cut off from the server and lied to, and while the server is stopped, killed and
restarted. All that they do and see goes into one log, with what an undisturbed observer sees at the server, and what
a resource that checks fencing tokens accepts. The log is judged afterwards: by
[Porcupine](https://github.com/anishathalye/porcupine), a checker of linearizability, for exclusion, the order of tokens,
and the fence; and by rules that name the events which contradict each other. What is recorded and what is
checked stands in the documentation of [package conformance/torture](../conformance/torture), which anybody can run on a
backend of theirs.

![One round on Redis: who held which key, under which faults](torture.svg)

![How early a loss is told, for each backend](torture-loss.svg)

`

// writeReport writes docs/torture.md and its figures, if TORTURE_REPORT names the
// command that was run.
func writeReport() error {
	command := os.Getenv("TORTURE_REPORT")
	if command == "" || len(results) == 0 {
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, preface, command, runtime.GOOS+"/"+runtime.GOARCH+" with "+runtime.Version(), runtime.NumCPU())
	err := torture.WriteReport(&b, results)
	writeMutants(&b)
	docs := filepath.Join("..", "..", "docs")
	return errors.Join(err, os.WriteFile(filepath.Join(docs, "torture.md"), []byte(b.String()), 0o600),
		draw(filepath.Join(docs, "torture.svg"), drawRedis),
		draw(filepath.Join(docs, "torture-loss.svg"), func(w io.Writer) error { return torture.WriteMargins(w, results) }))
}

// caught are the mutants that were noticed, and how: lines of a table.
var caught struct {
	sync.Mutex
	mutants []string
}

func noticed(mutant, by string) {
	caught.Lock()
	defer caught.Unlock()
	caught.mutants = append(caught.mutants, "| "+mutant+" | "+by+" |\n")
}

// writeMutants writes how the broken variants were noticed.
func writeMutants(b *strings.Builder) {
	if len(caught.mutants) == 0 {
		return
	}
	b.WriteString("## Mutants\n\nThe same run, on backends that were broken on purpose by changing a few lines: each must be noticed, " +
		"by the torture; or, where nobody who only watches can, or only with luck, by the conformance suite or by a test of the backend's package.\n\n" +
		"| what was broken | noticed by |\n| --- | --- |\n")
	slices.Sort(caught.mutants)
	for _, line := range caught.mutants {
		b.WriteString(line)
	}
}

func draw(path string, figure func(io.Writer) error) error {
	f, err := os.Create(path) //nolint:gosec // of this module
	if err != nil {
		return err
	}
	return errors.Join(figure(f), f.Close())
}

func drawRedis(w io.Writer) error {
	i := slices.IndexFunc(results, func(r *torture.Result) bool { return r.Backend == "Redis" })
	if i < 0 {
		return nil
	}
	return torture.WriteTimeline(w, results[i])
}
