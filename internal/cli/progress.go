package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/term"

	"berth.dev/berth/internal/launch"
)

// progress shows the steps of a cluster's start and berth's messages, on standard
// error. It is a slog.Handler too, so that both share one place and one lock.
type progress struct {
	mu    sync.Mutex
	to    *messages
	start time.Time
	verbosity
	// omitted is a step that this run does not have.
	omitted string
	// live shows the steps on a terminal until all are done; nil elsewhere.
	live *liveSteps
}

// verbosity selects the messages of a command: only errors, or also details.
type verbosity struct{ quiet, verbose bool }

func (v *verbosity) addFlags(flags *pflag.FlagSet) {
	flags.BoolVarP(&v.quiet, "quiet", "q", false, "print only errors")
	flags.BoolVarP(&v.verbose, "verbose", "v", false, "print details")
}

// check returns a usage error if both options are given.
func (v verbosity) check() error {
	if v.quiet && v.verbose {
		return &usageError{errors.New("--quiet and --verbose exclude each other")}
	}
	return nil
}

// newLines returns a progress that writes a line for each step. It is for commands
// that bring up no cluster in their own process.
func newLines(to io.Writer, v verbosity) *progress {
	queue, ok := to.(*messages)
	if !ok {
		queue = newMessages(to)
	}
	return &progress{to: queue, start: time.Now(), verbosity: v}
}

// newProgress returns a progress that shows the steps live on a terminal, and as
// lines elsewhere.
func newProgress(to io.Writer, v verbosity) *progress {
	p := newLines(to, v)
	file, ok := p.to.to.(*os.File)
	if ok && v == (verbosity{}) && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		p.live = newLiveSteps(file, p.start)
	}
	return p
}

// steps lists the steps to show unless --verbose asks for all, in their usual
// order.
var steps = []struct{ name, doing, done string }{
	{"sandbox", "namespaces", "namespaces ready"},
	{"containerd/ready", "containerd", "containerd ready"},
	{"images", "images", "images imported"},
	{"control/ready", "control plane", "control plane ready"},
	{"node/ready", "node", "node ready"},
	{"workload", "workload", "workload applied"},
}

// omit hides a step that the run does not have.
func (p *progress) omit(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.omitted = name
	if p.live != nil {
		p.live.omit(name)
	}
}

// step reports that a step is done.
func (p *progress) step(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quiet || name == p.omitted {
		return
	}
	if p.live != nil && name == launch.StepPersistent {
		p.live.vanish()
		p.live = nil
	}
	if p.live != nil {
		if p.live.done(name) {
			p.endLive()
		}
		return
	}
	for _, s := range steps {
		if s.name == name {
			p.line("%s", s.done)
			return
		}
	}
	if p.verbose {
		p.line("%s", name)
	}
}

// line prints one formatted line. The caller holds mu.
func (p *progress) line(format string, args ...any) {
	to := p.to.to
	if p.live != nil {
		to = p.live
	}
	p.to.writeTo(to, fmt.Appendf(nil, "berth: %6.2fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...)))
}

// end gives the terminal back. It can be called twice.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLive()
}

func (p *progress) endLive() {
	if p.live != nil {
		p.live.end()
		p.live = nil
	}
}

// Enabled implements slog.Handler.
func (p *progress) Enabled(_ context.Context, level slog.Level) bool {
	switch {
	case p.quiet:
		return level >= slog.LevelError
	case p.verbose:
		return true
	default:
		return level >= slog.LevelInfo
	}
}

// Handle implements slog.Handler.
func (p *progress) Handle(_ context.Context, record slog.Record) error {
	var text strings.Builder
	if record.Level >= slog.LevelWarn {
		text.WriteString(strings.ToLower(record.Level.String()) + ": ")
	}
	text.WriteString(record.Message)
	record.Attrs(func(attr slog.Attr) bool {
		fmt.Fprintf(&text, " %s=%v", attr.Key, attr.Value)
		return true
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line("%s", text.String())
	return nil
}

// WithAttrs and WithGroup implement slog.Handler. They do nothing, because berth does
// not use loggers with attributes.
func (p *progress) WithAttrs([]slog.Attr) slog.Handler { return p }
func (p *progress) WithGroup(string) slog.Handler      { return p }
