// Package notify reports the progress of a program to the process that started it,
// one JSON object per line. internal/base/notify of the main module reads it.
package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier writes to an inherited descriptor. Without one every method does
// nothing, so that a program also runs by itself.
type Notifier struct{ file *os.File }

// New returns the notifier of a descriptor, -1 for none.
func New(fd int) Notifier {
	if fd < 0 {
		return Notifier{}
	}
	unix.CloseOnExec(fd)
	return Notifier{os.NewFile(uintptr(fd), "notify")}
}

func (n Notifier) write(line string) {
	if n.file != nil {
		// The reader is our parent; should it be gone, so are we soon.
		_, _ = n.file.WriteString(line + "\n")
	}
}

// Phase says that a step of the start is done.
func (n Notifier) Phase(name string) {
	n.write(fmt.Sprintf(`{"event":"phase","name":%q}`, name))
}

// Ready says that the program does its work.
func (n Notifier) Ready() { n.write(`{"event":"ready"}`) }

// Notice passes on what the user should know.
func (n Notifier) Notice(text string) {
	quoted, _ := json.Marshal(text) // a string always encodes
	n.write(`{"event":"notice","name":` + string(quoted) + `}`)
}

// Heartbeat reports every second that the process is running, until ctx ends. It
// also reports the result of counts, unless counts is nil.
func (n Notifier) Heartbeat(ctx context.Context, counts func() map[string]uint64) {
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
			line := `{"event":"alive"}`
			if counts != nil {
				text, _ := json.Marshal(counts()) // numbers always encode
				line = `{"event":"alive","counts":` + string(text) + `}`
			}
			n.write(line)
		}
	}
}
