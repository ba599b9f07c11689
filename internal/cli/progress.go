package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// progress shows the bring-up of a cluster and berth's own words, on standard
// error. It is a slog.Handler too, so that both share one place and one lock.
type progress struct {
	mu      sync.Mutex
	to      io.Writer
	start   time.Time
	quiet   bool
	verbose bool
}

func newProgress(to io.Writer, quiet, verbose bool) *progress {
	return &progress{to: to, start: time.Now(), quiet: quiet, verbose: verbose}
}

// spoken are the steps that are shown unless --verbose asks for all.
var spoken = map[string]string{
	"sandbox":          "namespaces ready",
	"containerd/ready": "containerd ready",
	"images":           "images imported",
	"control/ready":    "control plane ready",
	"node/ready":       "node ready",
	"workload":         "workload applied",
}

// step reports that a step is done.
func (p *progress) step(name string) {
	text, known := spoken[name]
	if p.quiet || !known && !p.verbose {
		return
	}
	if !known {
		text = name
	}
	p.line("%s", text)
}

func (p *progress) line(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.to, "berth: %6.2fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}

func (p *progress) end() {}

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
	p.line("%s", text.String())
	return nil
}

// WithAttrs and WithGroup implement slog.Handler; berth's own words carry no
// attributes worth repeating.
func (p *progress) WithAttrs([]slog.Attr) slog.Handler { return p }
func (p *progress) WithGroup(string) slog.Handler      { return p }
