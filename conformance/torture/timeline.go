package torture

import (
	"fmt"
	"html"
	"io"
	"slices"
	"strings"
	"time"
)

// Colours of workers, which most people can tell apart, and of what must be seen.
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999933", "#666666"}

const (
	laneHeight = 26
	leftWidth  = 90
	plotWidth  = 1000
	headHeight = 46
)

// drawing is an SVG that is being made.
type drawing struct {
	strings.Builder
	from, to int64
	lanes    []string
}

// WriteTimeline draws the first round of a run as SVG: for each worker what was broken, and
// for each key who held it.
func WriteTimeline(w io.Writer, r *Result) error {
	h := newHistory(slices.Clone(r.Timeline), Terms{TTL: r.TTL})
	if len(h.events) == 0 {
		return nil
	}
	d := &drawing{from: h.events[0].At, to: h.last}
	d.lanes = lanesOf(h)
	height := headHeight + laneHeight*len(d.lanes) + 24
	fmt.Fprintf(d, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="11">`+"\n", leftWidth+plotWidth+10, height)
	fmt.Fprintf(d, `<rect width="100%%" height="100%%" fill="white"/><text x="10" y="18" font-size="13">%s: one round with all faults that break nothing (TTL %v)</text>`+"\n",
		html.EscapeString(r.Backend), r.TTL)
	d.WriteString(`<text x="10" y="34" fill="#555">grey: a fault is in force; a bar: the key is held, in the colour of the worker; pale: ` +
		`the server still has what its holder has lost; ×: the holder died; a red mark: a late write was refused</text>` + "\n")
	d.grid(h)
	for _, f := range h.disturbs {
		lane := f.worker
		if lane == "" {
			lane = "server"
		}
		d.bar(lane, f.from, min(f.to, d.to), "#d0d0d0", f.fault)
		if width := d.x(min(f.to, d.to)) - d.x(f.from); width > 5*float64(len(f.fault)) {
			fmt.Fprintf(d, `<text x="%.1f" y="%d" font-size="9" fill="#444">%s</text>`+"\n", d.x(f.from)+3, d.y(lane)+16, html.EscapeString(f.fault))
		}
	}
	for _, g := range h.grants {
		d.grant(g)
	}
	d.WriteString("</svg>\n")
	_, err := io.WriteString(w, d.String())
	return err
}

// lanesOf are the workers, the server, and the keys.
func lanesOf(h *history) []string {
	var workers, keys []string
	for _, c := range h.calls {
		if w := workerOf(c.Who); !slices.Contains(workers, w) {
			workers = append(workers, w)
		}
		if !slices.Contains(keys, c.Key) {
			keys = append(keys, c.Key)
		}
	}
	slices.Sort(workers)
	slices.Sort(keys)
	return append(append(workers, "server"), keys...)
}

func (d *drawing) x(at int64) float64 {
	return leftWidth + plotWidth*float64(at-d.from)/float64(max(1, d.to-d.from))
}

func (d *drawing) y(lane string) int {
	return headHeight + laneHeight*slices.Index(d.lanes, lane)
}

// grid draws the seconds and the names of the lanes.
func (d *drawing) grid(h *history) {
	bottom := headHeight + laneHeight*len(d.lanes)
	for at, n := d.from, 0; at <= d.to; at, n = at+int64(time.Second), n+1 {
		fmt.Fprintf(d, `<path d="M%.1f %dV%d" stroke="#eee"/><text x="%.1f" y="%d" fill="#555">%d s</text>`+"\n", d.x(at), headHeight, bottom, d.x(at), bottom+14, n)
	}
	for i, lane := range d.lanes {
		colour, label := "black", lane
		if n := slices.Index(d.lanes, "server"); i < n {
			colour = colourOf(lane)
			label = "worker " + strings.TrimPrefix(lane, "w")
		} else if i > n {
			label = "key " + lane[len(lane)-1:]
		}
		fmt.Fprintf(d, `<text x="10" y="%d" fill="%s">%s</text>`+"\n", d.y(lane)+17, colour, html.EscapeString(label))
	}
	if h.calm < never {
		fmt.Fprintf(d, `<path d="M%.1f %dV%d" stroke="#090" stroke-dasharray="3"/><text x="%.1f" y="%d" fill="#090">all healed</text>`+"\n",
			d.x(h.calm), headHeight-6, bottom, d.x(h.calm)+3, headHeight)
	}
}

func colourOf(who string) string {
	n := 0
	_, _ = fmt.Sscanf(workerOf(who), "w%d", &n)
	return colours[n%len(colours)]
}

// bar draws an interval, with what it is to be read when pointed at.
func (d *drawing) bar(lane string, from, to int64, colour, title string) {
	fmt.Fprintf(d, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"><title>%s</title></rect>`+"\n",
		d.x(from), d.y(lane)+4, max(1.5, d.x(to)-d.x(from)), laneHeight-8, colour, html.EscapeString(title))
}

func (d *drawing) grant(g *grant) {
	colour, end := colourOf(g.Who), min(g.end, d.to)
	if g.seen != nil && g.end < never && g.seen.gone < never && g.seen.gone > end {
		fmt.Fprintf(d, `<g opacity="0.3">`)
		d.bar(g.Key, end, g.seen.gone, colour, fmt.Sprintf("the server still has %d", g.Token))
		d.WriteString("</g>\n")
	}
	d.bar(g.Key, g.At, end, colour, fmt.Sprintf("%s, token %d, for %v", g.Who, g.Token, time.Duration(end-g.At)))
	if g.died {
		fmt.Fprintf(d, `<text x="%.1f" y="%d" font-size="14" text-anchor="middle">×</text>`+"\n", d.x(end), d.y(g.Key)+18)
	}
	for _, w := range g.writes {
		if w.wrote != nil && !w.wrote.OK && w.wrote.At >= g.end {
			fmt.Fprintf(d, `<path d="M%.1f %dv%d" stroke="red" stroke-width="2"/>`+"\n", d.x(w.wrote.At), d.y(g.Key)+1, laneHeight-2)
		}
	}
}
