package login

import (
	"context"
	"slices"
	"testing"
	"time"

	"berth.dev/berth/internal/job/slurm"
)

// The cluster of a job that has just begun may only be starting. So the next command tries
// it again.
func TestYoungJobIsTriedAgain(t *testing.T) {
	p := &Place{getenv: func(string) string { return "" }, base: t.TempDir()}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // no job can be reached
	clusters, none := p.look(ctx, []slurm.Queued{{ID: "7", Elapsed: 10 * time.Second}, {ID: "8", Elapsed: time.Hour}})
	if len(clusters) > 0 || !slices.Equal(none, []string{"8"}) {
		t.Errorf("clusters %v, without one %v", clusters, none)
	}
}
