package netrole

import (
	"context"
	"log/slog"
	"sync"

	"berth.dev/berth/internal/base/notify"
)

// noticing handles a role's log and shows its warnings to the user. It shows each
// warning once for every node that it concerns, not once for every queue.
type noticing struct {
	slog.Handler
	notifier *notify.Notifier

	mu   sync.Mutex
	said map[string]bool
}

func (n *noticing) Handle(ctx context.Context, record slog.Record) error {
	if record.Level >= slog.LevelWarn {
		text := record.Message
		record.Attrs(func(attribute slog.Attr) bool {
			if attribute.Key == "node" {
				text = "node " + attribute.Value.String() + ": " + text
			}
			return true
		})
		n.mu.Lock()
		first := !n.said[text]
		if n.said == nil {
			n.said = map[string]bool{}
		}
		n.said[text] = true
		n.mu.Unlock()
		if first {
			n.notifier.Notice(text)
		}
	}
	return n.Handler.Handle(ctx, record)
}
