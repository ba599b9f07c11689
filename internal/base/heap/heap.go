// Package heap sets how much memory the garbage collector of a Kubernetes role
// may spend. It allows much during the start (package startup), to save processor time
// that all roles need at that moment, and little afterwards.
package heap

import (
	"context"
	"runtime/debug"
	"time"

	"berth.dev/berth/internal/base/linux"
)

// restGC is Go's default.
const restGC = 100

// Rest restores Go's default frequency of garbage collection.
func Rest() { debug.SetGCPercent(restGC) }

// Settle waits for a time, and then returns the memory that only the start needed to the
// system. That takes 50 ms of CPU time. It does nothing if ctx ends before.
func Settle(ctx context.Context, after time.Duration) {
	select {
	case <-time.After(after):
		Rest()
		debug.FreeOSMemory()
		// A failure here only costs memory.
		_, _ = linux.ForgetProgram()
	case <-ctx.Done():
	}
}
