package members

import (
	"log/slog"
	"sync"
)

// losses holds messages about nodes that were just lost, until they are reported.
type losses struct {
	mu         sync.Mutex
	unreported map[string]string // by node
}

func (l *losses) add(node, text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.unreported == nil {
		l.unreported = map[string]string{}
	}
	l.unreported[node] = text
}

// report reports lost nodes to the user, each once.
func (l *losses) report(log *slog.Logger, nodes ...string) {
	for _, node := range nodes {
		l.mu.Lock()
		text, unreported := l.unreported[node]
		delete(l.unreported, node)
		l.mu.Unlock()
		if unreported {
			log.Warn(text)
		}
	}
}
