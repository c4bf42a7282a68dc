package torture

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
)

// Margin is how long after Lost had closed the server still had a grant, as far as the
// observer can tell: below zero, the server had let go before.
type Margin struct{ Least, Most time.Duration }

// buckets of margins. The first two are for those that are below zero, and for those of which the
// observer cannot tell; the others go by what they are at least.
var buckets = []struct {
	name string
	from time.Duration
}{
	{"too late", 0},
	{"cannot tell", 0},
	{"0–10 ms", 0},
	{"10–20 ms", 10 * time.Millisecond},
	{"20–40 ms", 20 * time.Millisecond},
	{"40–80 ms", 40 * time.Millisecond},
	{"80–160 ms", 80 * time.Millisecond},
	{"160–320 ms", 160 * time.Millisecond},
	{"320–640 ms", 320 * time.Millisecond},
	{"640 ms or more", 640 * time.Millisecond},
}

func (m Margin) bucket() int {
	switch {
	case m.Most < 0:
		return 0
	case m.Least < 0:
		return 1
	}
	for i, b := range slices.Backward(buckets) {
		if m.Least >= b.from {
			return i
		}
	}
	return 1
}

// histogram counts the margins of each bucket.
func (r *Result) histogram() []int {
	counts := make([]int, len(buckets))
	for _, m := range r.Margins {
		counts[m.bucket()]++
	}
	return counts
}

func writeMargins(b *strings.Builder, results []*Result) {
	head := []string{"from `Lost` to the server's letting go"}
	for _, bucket := range buckets {
		head = append(head, bucket.name)
	}
	var rows [][]string
	for _, r := range results {
		row := []string{r.Backend}
		for _, n := range r.histogram() {
			row = append(row, fmt.Sprint(n))
		}
		rows = append(rows, row)
	}
	b.WriteString("## How early a loss is told\n\nOf the grants that were lost, and not released before the server let go of them: how long after `Lost` closed " +
		"that was, at least, as the observer can prove. Rounds with data loss or deletions by hand are left out: there nobody can be told in time. " +
		"*Cannot tell*: the loss was told and the lock freed between two questions of the observer. *Too late*: it was freed first; for a " +
		"backend that promises `Leased` that is a violation. Who released in time is not counted.\n\n")
	table(b, head, rows)
}

// WriteMargins draws the histogram of each run's margins, as SVG.
func WriteMargins(w io.Writer, results []*Result) error {
	const (
		left, top    = 150, 46
		column, lane = 88, 64
		highest      = 40
	)
	bottom := top + lane*len(results)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n",
		left+column*len(buckets)+10, bottom+30)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/><text x="10" y="18" font-size="13">From Lost to the server's letting go</text>` + "\n")
	b.WriteString(`<text x="10" y="34" fill="#555">each bar: how many losses were told so long before the lock was free; red: after it</text>` + "\n")
	for i, bucket := range buckets {
		fmt.Fprintf(&b, `<text x="%d" y="%d" fill="#555" text-anchor="middle">%s</text>`+"\n", left+column*i+column/2, bottom+16, html.EscapeString(bucket.name))
	}
	for lane0, r := range results {
		base := top + lane*(lane0+1) - 8
		fmt.Fprintf(&b, `<text x="10" y="%d">%s</text><path d="M%d %dh%d" stroke="#ccc"/>`+"\n",
			base, html.EscapeString(r.Backend), left, base, column*len(buckets))
		counts := r.histogram()
		most := max(1, slices.Max(counts))
		for i, n := range counts {
			if n == 0 {
				continue
			}
			colour, height := colours[0], max(2, highest*n/most)
			switch i {
			case 0:
				colour = "#d00000"
			case 1:
				colour = "#999999"
			}
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%d" height="%d" fill="%s"/><text x="%d" y="%d" text-anchor="middle">%d</text>`+"\n",
				left+column*i+12, base-height, column-24, height, colour, left+column*i+column/2, base-height-3, n)
		}
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}
