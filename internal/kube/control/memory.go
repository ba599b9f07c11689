package control

import (
	"context"
	"runtime/debug"
	"time"

	"berth.dev/berth/internal/linux"
)

const (
	// startGC lets the heap grow to five times what is in use before it is
	// collected. The start builds tables that stay, so collecting finds little.
	startGC = 400
	// restGC is Go's default.
	restGC = 100
	// settleTime is how long after the start memory is given back: the first
	// pods run by then, and the core that it costs for 50 ms is not missed.
	settleTime = 5 * time.Second
)

// hurry postpones garbage collection until settle.
func hurry() { debug.SetGCPercent(startGC) }

// settle waits a while and gives the memory that only the start needed back to
// the job.
func settle(ctx context.Context) {
	select {
	case <-time.After(settleTime):
		debug.SetGCPercent(restGC)
		debug.FreeOSMemory()
		// What fails here costs memory, nothing else.
		_, _ = linux.ForgetProgram()
	case <-ctx.Done():
	}
}
