//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/holdfast-go/holdfast/lock"
)

// report is what holdfast itself has to say, on stderr: messages, each in one line
// that says what happened and what to do; and with -v what happens to the lock.
type report struct {
	format  logFormat
	verbose bool
	bounded bool // the command ends after some time, and says then how things are
	lines   *queue
	hurry   <-chan os.Signal // signals to end that do not end the command at once

	released chan struct{} // takes one, when the observer has been told of a release
}

func newReport(stderr io.Writer) *report {
	r := &report{released: make(chan struct{}, 1)}
	r.lines = newQueue(stderr, func(n int) {
		r.write(stderr, slog.LevelWarn, fmt.Sprintf("%d lines were dropped, as nobody read them", n))
	})
	return r
}

// close waits for what was said to be written, unless nobody reads it and it was events,
// or the command was told to end.
func (r *report) close() { r.lines.close(r.hurry) }

// say writes a message. That stderr is closed, or that nobody reads it, is no reason to
// stop guarding the program.
func (r *report) say(level slog.Level, format string, args ...any) {
	r.write(message{r.lines}, level, fmt.Sprintf(format, args...))
}

// fail writes the message with which the command ends.
func (r *report) fail(f *failure) {
	r.write(message{r.lines}, slog.LevelError, f.text, slog.Int("exit_code", f.code))
}

func (r *report) write(w io.Writer, level slog.Level, text string, attrs ...slog.Attr) {
	text = oneLine(text)
	if r.format == formatJSON {
		r.logger(w).LogAttrs(context.Background(), level, text, attrs...)
		return
	}
	prefix := "holdfast: "
	if level == slog.LevelWarn {
		prefix += "warning: "
	}
	_, _ = io.WriteString(w, prefix+text+"\n")
}

// event tells of what happened, where -v asks for it. It never blocks.
func (r *report) event(level slog.Level, what string, attrs ...slog.Attr) {
	if r.verbose {
		r.logger(r.lines).LogAttrs(context.Background(), level, what, attrs...)
	}
}

// awaitReleased waits until the release is among what was said: the observer is told of it
// at about the moment at which Release returns.
func (r *report) awaitReleased() {
	const most = 500 * time.Millisecond
	if !r.verbose {
		return
	}
	select {
	case <-r.released:
	case <-time.After(most):
	}
}

// observe is told of what happens to the lock, and must not block: see
// [lock.Config]. What the backend's operator should mend is shown in any case.
func (r *report) observe(_ context.Context, e lock.Event) {
	switch {
	case r.verbose:
	case e.Kind == lock.Warning:
		r.write(r.lines, slog.LevelWarn, plain(e.Err))
	case e.Kind == lock.Unanswered && !r.bounded: // a bounded wait says so at its end
		r.write(r.lines, slog.LevelInfo, unreachable(e.Err))
	}
	r.event(levelOf(e.Kind), e.Kind.String(), attributesOf(e)...)
	if e.Kind == lock.Released {
		select {
		case r.released <- struct{}{}:
		default:
		}
	}
}

func attributesOf(e lock.Event) []slog.Attr {
	var attrs []slog.Attr
	if e.Key != "" {
		attrs = append(attrs, slog.String("key", e.Key))
	}
	if e.Token != 0 {
		attrs = append(attrs, slog.Uint64("token", uint64(e.Token)))
	}
	if e.Took != 0 {
		attrs = append(attrs, slog.Duration("took", e.Took))
	}
	if e.Left != 0 {
		attrs = append(attrs, slog.Duration("left", e.Left))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.String("error", oneLine(plain(e.Err))))
	}
	return attrs
}

func unreachable(err error) string {
	return fmt.Sprintf("the backend cannot be reached; waiting for it (%s)", plain(err))
}

func levelOf(k lock.EventKind) slog.Level {
	switch k {
	case lock.LostLock:
		return slog.LevelError
	case lock.Failed, lock.RenewFailed, lock.Jeopardy, lock.Warning, lock.Unanswered:
		return slog.LevelWarn
	default:
		return slog.LevelInfo
	}
}

// logger returns one that writes to w in the format that was asked for. Lines of text
// begin as the messages do, and those in JSON name their logger: the program that
// holdfast runs may write to the same stderr.
func (r *report) logger(w io.Writer) *slog.Logger {
	if r.format == formatJSON {
		h := slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: durationsInSeconds})
		return slog.New(h).With("logger", "holdfast")
	}
	return slog.New(slog.NewTextHandler(prefixed{w}, nil))
}

// durationsInSeconds are numbers whose unit need not be guessed, as nanoseconds must.
func durationsInSeconds(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.Float64Value(a.Value.Duration().Seconds())
	}
	return a
}

// prefixed writes lines, one each call, as slog's handlers do.
type prefixed struct{ w io.Writer }

func (p prefixed) Write(line []byte) (int, error) {
	_, err := p.w.Write(append([]byte("holdfast: "), line...))
	return len(line), err
}

// logFormat is the value of --log.
type logFormat string

const (
	formatText logFormat = "text"
	formatJSON logFormat = "json"
)

// String implements pflag.Value.
func (f *logFormat) String() string {
	if *f == "" {
		return string(formatText)
	}
	return string(*f)
}

// Set implements pflag.Value.
func (f *logFormat) Set(s string) error {
	switch logFormat(s) {
	case formatText, formatJSON:
		*f = logFormat(s)
		return nil
	}
	return fmt.Errorf("give %s or %s", formatText, formatJSON)
}

// Type implements pflag.Value: it names the value in the help.
func (f *logFormat) Type() string { return "FORMAT" }

// plain returns err's text without the prefix that messages begin with.
func plain(err error) string {
	return strings.TrimPrefix(err.Error(), "holdfast: ")
}

// oneLine keeps a message on its line, whatever an error of an SDK contains.
func oneLine(s string) string {
	var b strings.Builder
	for line := range strings.FieldsFuncSeq(s, unicode.IsControl) {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(line)
	}
	return b.String()
}
