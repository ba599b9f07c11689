package login

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/job/slurm"
)

// EndedJob returns the reason why a cluster that was in use is gone for good. name is
// Target.String. It returns "" if the job runs, or if Slurm does not answer.
func (p *Place) EndedJob(ctx context.Context, name string) string {
	if name == persistent.Local {
		if _, ok := p.local(name); ok {
			return ""
		}
		return "the cluster of this machine has ended"
	}
	number, _, _ := strings.Cut(name, ".")
	job, ok, err := slurm.QueuedJob(ctx, number, p.ask)
	switch {
	case err != nil || ok && job.UID == os.Getuid() && slices.Contains([]string{slurm.Running, slurm.Suspended, slurm.Completing}, job.State):
		return ""
	case ok && job.State == slurm.Pending || ok && job.State == slurm.Configuring:
		return fmt.Sprintf("job %s was requeued", number)
	}
	return stateProblem(number, job, ok, os.Getuid()).Text
}
