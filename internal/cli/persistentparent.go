package cli

import (
	"context"
	"os"

	"berth.dev/berth/internal/launch"
)

// PersistentParent runs the persistent parent of a cluster, and returns the exit
// status. At a stopped terminal it waits for nothing but the last messages, and for
// lastWait at most, because the end of the cluster is awaited by 'berth down'.
func PersistentParent() int {
	said := newMessages(os.Stderr)
	code := launch.PersistentParent(said)
	ended, end := context.WithCancel(context.Background())
	end()
	said.finish(ended)
	return code
}
