package torture

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdfast-go/holdfast/lock"
)

// WriteReport writes what came of some runs, as Markdown.
func WriteReport(w io.Writer, results []*Result) error {
	var b strings.Builder
	writeBackends(&b, results)
	writeFaults(&b, results)
	writeMargins(&b, results)
	_, err := io.WriteString(w, b.String())
	return err
}

// table writes a table, whose first column is text and whose others are figures.
func table(b *strings.Builder, head []string, rows [][]string) {
	fmt.Fprintf(b, "| %s |\n| --- |%s\n", strings.Join(head, " | "), strings.Repeat(" ---: |", len(head)-1))
	for _, row := range rows {
		fmt.Fprintf(b, "| %s |\n", strings.Join(row, " | "))
	}
	b.WriteString("\n")
}

// sum adds up the rounds of a run.
func (r *Result) sum() (sum Row) {
	for _, row := range r.Rows {
		sum.Rounds += row.Rounds
		sum.Injected += row.Injected
		sum.Violations += row.Violations
		sum.add(row.Counts)
	}
	return sum
}

// leased says whether the backend promises that a loss is told before the server lets go.
func (r *Result) leased() bool { return r.Features&lock.Leased != 0 }

func writeBackends(b *strings.Builder, results []*Result) {
	var rows [][]string
	var all Row
	var unleased []string
	for _, r := range results {
		sum := r.sum()
		all.Rounds += sum.Rounds
		all.Injected += sum.Injected
		all.Violations += sum.Violations
		all.add(sum.Counts)
		leased := "yes"
		if !r.leased() {
			leased = "no"
			unleased = append(unleased, r.Backend)
		}
		rows = append(rows, []string{
			r.Backend, leased, seconds(r.TTL), r.Took.Round(time.Second).String(), fmt.Sprint(sum.Rounds),
			fmt.Sprint(sum.Injected), fmt.Sprint(sum.Acquisitions), fmt.Sprint(sum.Grants), fmt.Sprint(sum.Losses),
			fmt.Sprint(sum.Deaths), fmt.Sprint(sum.Waiting), fmt.Sprint(sum.Orphans), fmt.Sprint(sum.Refused), quantiles(r.HandOvers),
			fmt.Sprintf("**%d**", sum.Violations), fmt.Sprint(r.Seed),
		})
	}
	fmt.Fprintf(b, "**%d faults** were injected in %d rounds. Of %d acquisitions %d were granted; %d grants were lost, and %d ended with "+
		"the death of their process. **Violations: %d.**\n\n",
		all.Injected, all.Rounds, all.Acquisitions, all.Grants, all.Losses, all.Deaths, all.Violations)
	b.WriteString("## Backends\n\n")
	table(b, []string{
		"backend", "`Leased`", "TTL", "time", "rounds", "faults", "acquisitions", "grants", "losses", "died holding",
		"died waiting", "orphans", "late writes", "hand-over", "violations", "seed",
	}, rows)
	b.WriteString("- *losses*: `Lost` closed\n" +
		"- *died holding*, *died waiting*: processes were killed, or killed themselves, with the lock or waiting for it\n" +
		"- *orphans*: grants that nobody took, for their caller had given up or died; each went away in time (the observer cannot tell " +
		"where the server shows no tokens)\n" +
		"- *late writes*: those of holders that had lost, and did not know or did not look; each was refused by the resource, for its token " +
		"was older than the next holder's\n" +
		"- *hand-over*: from a call of `Release` to the return of the `Acquire` that waited for it, while all was well with everybody: median, " +
		"and the longest of 99 in 100\n\n")
	for _, name := range unleased {
		fmt.Fprintf(b, "%s does not promise `Leased`: the server may free a lock before its holder is told, if their connection ends. So in rounds "+
			"whose faults may end connections exclusion is not asked of it, but tokens, fence and liveness are; in all others it is.\n\n", name)
	}
}

func writeFaults(b *strings.Builder, results []*Result) {
	var names []string
	cells := make(map[string]map[int]Row)
	for i, r := range results {
		for _, row := range r.Rows {
			if cells[row.Fault] == nil {
				names = append(names, row.Fault)
				cells[row.Fault] = make(map[int]Row)
			}
			cells[row.Fault][i] = row
		}
	}
	slices.SortStableFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(len(cells[b]), len(cells[a])), cmp.Compare(a, b))
	})
	head := []string{"fault"}
	for _, r := range results {
		head = append(head, r.Backend)
	}
	var rows [][]string
	for _, name := range names {
		line := []string{name}
		for i := range results {
			cell := ""
			if row, ok := cells[name][i]; ok {
				cell = fmt.Sprintf("%d / %d / **%d** / %s%s", row.Grants, row.Losses, row.Violations, seconds(row.Takeover), mark(row.Breaks))
				if row.Injected > 0 {
					cell = fmt.Sprintf("%d× ", row.Injected) + cell
				}
			}
			line = append(line, cell)
		}
		rows = append(rows, line)
	}
	b.WriteString("## Faults\n\nEach field: how often the fault was injected × grants / losses / **violations** / worst takeover, which is the longest time " +
		"from a holder's loss or death to the next grant to one who waited already, faults on whom count in. An empty field: the backend cannot have the fault, " +
		"or the run was too short to come to it.\n\n")
	table(b, head, rows)
	b.WriteString("¹ the fault takes away the assumption that the server keeps its locks: exclusion is not asked for, all the rest is. " +
		"² it takes away the order of tokens.\n\n")
}

// rank puts first the rounds that are not of one fault.
func rank(fault string) int {
	return slices.Index([]string{NoFault, AllFaults, fault}, fault)
}

func mark(a Assumption) string {
	s := ""
	if a&Ownership != 0 {
		s += " ¹"
	}
	if a&TokenOrder != 0 {
		s += " ²"
	}
	return s
}

// quantiles are the median, and what 99 in 100 do not exceed.
func quantiles(all []time.Duration) string {
	if len(all) == 0 {
		return "–"
	}
	all = slices.Sorted(slices.Values(all))
	at := func(percent int) string {
		ms := all[len(all)*percent/100].Seconds() * 1000
		if ms >= 10 {
			return fmt.Sprintf("%.0f", ms)
		}
		return fmt.Sprintf("%.2g", ms)
	}
	return at(50) + ", " + at(99) + " ms"
}

func seconds(d time.Duration) string {
	switch {
	case d == 0:
		return "–"
	case d < 10*time.Millisecond:
		return "< 10 ms"
	}
	return fmt.Sprintf("%.2g s", d.Seconds())
}
