package main

import (
	"context"
	"fmt"
	"os"
	"time"
)

// notifier tells whoever started us how far we are, one JSON object per line.
// A nil file makes every method a no-op, so that the daemon also runs alone.
type notifier struct{ file *os.File }

func newNotifier(fd int) notifier {
	if fd < 0 {
		return notifier{}
	}
	return notifier{os.NewFile(uintptr(fd), "notify")}
}

func (n notifier) write(line string) {
	if n.file != nil {
		// The reader is our parent; should it be gone, so are we soon.
		_, _ = n.file.WriteString(line + "\n")
	}
}

func (n notifier) phase(name string) {
	n.write(fmt.Sprintf(`{"event":"phase","name":%q}`, name))
}

func (n notifier) ready() { n.write(`{"event":"ready"}`) }

// heartbeat says every second that the process is scheduled, until ctx ends.
func (n notifier) heartbeat(ctx context.Context) {
	if n.file == nil {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n.write(`{"event":"alive"}`)
		}
	}
}
