package torture_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/conformance/torture"
	"github.com/holdfast-go/holdfast/lock"
)

func TestWriteReport(t *testing.T) {
	results := []*torture.Result{
		{Backend: "one", Features: lock.Leased, TTL: ttl, Seed: 7, Margins: margins, HandOvers: []time.Duration{300 * time.Millisecond, 2100 * time.Microsecond, time.Millisecond}, Rows: []torture.Row{
			{Fault: "partition", Rounds: 1, Injected: 3, Counts: torture.Counts{Acquisitions: 30, Grants: 20, Losses: 4, Takeover: ttl}},
			{Fault: "deletion by hand", Breaks: torture.Ownership, Rounds: 1, Injected: 2, Violations: 5},
		}},
		{Backend: "two", TTL: ttl, Rows: []torture.Row{{Fault: "SIGSTOP", Rounds: 2, Injected: 9}}},
	}
	var b strings.Builder
	if err := torture.WriteReport(&b, results); err != nil {
		t.Fatal(err)
	}
	columns := 0
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			continue
		}
		n := strings.Count(line, "|")
		if columns == 0 {
			columns = n
		}
		if n != columns {
			t.Errorf("%d columns in a table of %d: %s", n, columns, line)
		}
	}
	for _, want := range []string{
		"**14 faults** were injected in 4 rounds. Of 30 acquisitions 20 were granted; 4 grants were lost",
		"**Violations: 5.**",
		"| 2.1, 300 ms |",
		"| partition | 3× 20 / 4 / **0** / 1 s |  |",
		"| deletion by hand | 2× 0 / 0 / **5** / – ¹ |  |",
		"| SIGSTOP |  | 9× 0 / 0 / **0** / – |",
		"| one | 2 | 1 | 0 | 1 | 0 | 0 | 0 | 0 | 0 | 1 |",
		"\ntwo does not promise `Leased`",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, b.String())
		}
	}
}

// margins are two that are too late, one of which the observer cannot tell, and two others.
var margins = []torture.Margin{
	{Least: -time.Second, Most: -time.Millisecond},
	{Least: -5 * time.Millisecond, Most: -1},
	{Least: -time.Millisecond, Most: time.Millisecond},
	{Least: 15 * time.Millisecond, Most: time.Second},
	{Least: time.Hour, Most: 2 * time.Hour},
}

// A histogram is XML, with a bar for each bucket that has margins.
func TestWriteMargins(t *testing.T) {
	var b strings.Builder
	if err := torture.WriteMargins(&b, []*torture.Result{{Backend: "a <backend>", Margins: margins}, {Backend: "none"}}); err != nil {
		t.Fatal(err)
	}
	if bars := count(t, b.String(), "rect") - 1; bars != 4 { // and the background
		t.Errorf("%d bars, want 4:\n%s", bars, b.String())
	}
	if !strings.Contains(b.String(), ">2</text>") {
		t.Errorf("the two that are too late do not show:\n%s", b.String())
	}
}

// count counts the elements of XML that have a name.
func count(t *testing.T, text, name string) (n int) {
	t.Helper()
	decoder := xml.NewDecoder(strings.NewReader(text))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == name {
			n++
		}
	}
}

// A timeline is XML, with every grant and every fault in it.
func TestWriteTimeline(t *testing.T) {
	s := new(script)
	s.fault("w0", 10, 2000).fault("", 100, 200)
	s.grant("w0.1", 1, 0, 5).seen(3, 1000, 1005).lost(975).wrote(1020, 1021, 1022, 1, false, 2)
	s.grant("w1.1", 2, 10, 1004)
	s.on(torture.Killed, 1010, "w1.1").on(torture.Calm, 1100, "")
	var b strings.Builder
	if err := torture.WriteTimeline(&b, &torture.Result{Backend: "a <backend>", TTL: ttl, Timeline: s.events}); err != nil {
		t.Fatal(err)
	}
	if bars := count(t, b.String(), "title"); bars != 5 { // two faults, two grants, and what the server still had
		t.Errorf("%d bars, want 5:\n%s", bars, b.String())
	}
	if !strings.Contains(b.String(), "×") || !strings.Contains(b.String(), `stroke="red"`) {
		t.Errorf("the death or the late write does not show:\n%s", b.String())
	}
}
