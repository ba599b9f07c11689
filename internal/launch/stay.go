package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/kube/workload"
)

// upStep is the name of the job step of a cluster of berth up.
const upStep = "berth-up"

// noLimit is the shortest remaining time that counts as unlimited.
const noLimit = 300 * 24 * time.Hour

// downRequest is the cause of the end of a persistent cluster that a user
// requested.
type downRequest struct {
	persistent.EndRequest
	answer func(workload.Drained)
}

func (t *downRequest) Error() string { return "berth down" }

// isTask reports whether srun started this process as a task. A program started by
// a task's shell is not a task.
func isTask(job slurm.Job, getenv func(string) string) bool {
	own, err := strconv.Atoi(getenv("SLURM_TASK_PID"))
	return job.Place == slurm.PlaceTask && (err != nil || own == os.Getpid() || job.Tasks > 1)
}

// listenForDown accepts requests to end the cluster, also while it starts.
func (r *run) listenForDown(ctx context.Context, giveUp context.CancelCauseFunc) (err error) {
	if !r.Spec.Stay {
		return nil
	}
	if r.control, err = persistent.Listen(r.dirs.private.Path); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	go func() {
		request, answer, err := r.control.Await(ctx)
		if err != nil {
			return // the cluster ends for another reason
		}
		giveUp(&downRequest{request, func(d workload.Drained) { answer(persistent.Outcome{Asked: d.Asked, Ended: d.Ended}) }})
	}()
	return nil
}

// stayUp lets other runs use the cluster until ctx ends, and returns the cause of ctx.
func (r *run) stayUp(ctx context.Context) error {
	tools, err := r.dirs.tools()
	if err != nil {
		return err
	}
	facts := persistent.Facts{Job: jobOf(r.Getenv), Since: time.Now(), Cache: tools.Cache, Bin: tools.Bin, IDs: r.host.podIDs(), End: r.allocation.KnownEnd()}
	for _, member := range r.plan.Members {
		facts.Nodes = append(facts.Nodes, member.Name)
	}
	// Until now, a node that took the run over sent other processes to the
	// previous head.
	if err := os.Remove(filepath.Join(r.dirs.private.Path, rundir.HeadFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	if err := persistent.MarkReady(r.dirs.private.Path, facts); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	if r.Getenv(upVariable) != "" {
		if err := sayUp(r.Stderr, facts); err != nil {
			return exitcode.Wrap(exitcode.Output, fmt.Errorf("say that the cluster is up: %w", err))
		}
	} else {
		r.Log.Info(Describe(facts, time.Now()) + "; Ctrl-C or 'berth down' ends it")
	}
	r.takeImages(ctx)
	<-ctx.Done()
	return context.Cause(ctx)
}

// upMark begins the line on standard error that reports that the cluster is up.
// The messages of the start are in the same stream.
const upMark = "berth-up: "

// sayUp writes the line that reports that the cluster is up.
func sayUp(to io.Writer, facts persistent.Facts) error {
	encoded, err := json.Marshal(facts)
	if err == nil {
		_, err = fmt.Fprintf(to, "%s%s\n", upMark, encoded)
	}
	return err
}

// parseUp parses a line that sayUp wrote. ok is false for any other line.
func parseUp(line string) (facts persistent.Facts, ok bool) {
	encoded, ok := strings.CutPrefix(line, upMark)
	return facts, ok && json.Unmarshal([]byte(encoded), &facts) == nil
}

// Describe returns a line that describes the cluster that is up.
func Describe(f persistent.Facts, now time.Time) string {
	whose := "the cluster of job " + f.Job
	if f.Job == persistent.Local {
		whose = "the cluster of this machine"
	}
	text := whose + " is up"
	switch n := len(f.Nodes); n {
	case 0: // the cluster is on other hosts
	case 1:
		text += ": 1 node"
	default:
		text += fmt.Sprintf(": %d nodes", n)
	}
	// Slurm gives a job without a limit a year.
	if !f.End.IsZero() && f.End.Sub(now) < noLimit {
		text += fmt.Sprintf(", until %s (%s)", f.End.Format("15:04"), max(0, f.End.Sub(now)).Round(time.Minute))
	}
	return text
}
