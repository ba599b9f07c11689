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

// UpStep is the name of the step that a cluster of berth up runs in.
const UpStep = "berth-up"

// noLimit is a time that stands for none.
const noLimit = 300 * 24 * time.Hour

// toldToEnd is why a cluster that stays ends: somebody has said so.
type toldToEnd struct {
	order  persistent.EndRequest
	answer func(workload.Drained)
}

func (t *toldToEnd) Error() string { return "berth down" }

// isTask tells whether this process is a task that srun has started, and not a
// program in the shell that is one.
func isTask(job slurm.Job, getenv func(string) string) bool {
	own, err := strconv.Atoi(getenv("SLURM_TASK_PID"))
	return job.Place == slurm.PlaceTask && (err != nil || own == os.Getpid() || job.Tasks > 1)
}

// listenForDown lets others tell the cluster to end, also while it starts.
func (r *run) listenForDown(ctx context.Context, giveUp context.CancelCauseFunc) (err error) {
	if !r.Spec.Stay {
		return nil
	}
	if r.control, err = persistent.Listen(r.private.Path); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	go func() {
		order, answer, err := r.control.Await(ctx)
		if err != nil {
			return // it ends otherwise
		}
		giveUp(&toldToEnd{order, func(d workload.Drained) { answer(persistent.Outcome{Asked: d.Asked, Ended: d.Ended}) }})
	}()
	return nil
}

// stayUp lets others use the cluster until ctx ends.
func (r *run) stayUp(ctx context.Context) error {
	tools, err := r.makeTools()
	if err != nil {
		return err
	}
	facts := persistent.Facts{Job: jobOf(r.Getenv), Since: time.Now(), Cache: tools.cache, Bin: tools.bin, IDs: r.host.podIDs(), End: r.allocation.knownEnd()}
	for _, member := range r.plan.Members {
		facts.Nodes = append(facts.Nodes, member.Name)
	}
	// One that took the run over was none of those to ask so far.
	if err := os.Remove(filepath.Join(r.private.Path, rundir.HeadFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	if err := persistent.MarkReady(r.private.Path, facts); err != nil {
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

// upMark begins the line on standard error that says that the cluster is up. It
// is in one stream with what was said before.
const upMark = "berth-up: "

func sayUp(to io.Writer, facts persistent.Facts) error {
	encoded, err := json.Marshal(facts)
	if err == nil {
		_, err = fmt.Fprintf(to, "%s%s\n", upMark, encoded)
	}
	return err
}

// heardUp reads such a line.
func heardUp(line string) (facts persistent.Facts, ok bool) {
	encoded, ok := strings.CutPrefix(line, upMark)
	return facts, ok && json.Unmarshal([]byte(encoded), &facts) == nil
}

// jobOf names the job of this process.
func jobOf(getenv func(string) string) string {
	if job := getenv("SLURM_JOB_ID"); job != "" {
		return job
	}
	return persistent.Local
}

// Describe says in a line which cluster is up.
func Describe(f persistent.Facts, now time.Time) string {
	whose := "the cluster of job " + f.Job
	if f.Job == persistent.Local {
		whose = "the cluster of this machine"
	}
	text := whose + " is up"
	switch n := len(f.Nodes); n {
	case 0: // it is elsewhere
	case 1:
		text += ": 1 node"
	default:
		text += fmt.Sprintf(": %d nodes", n)
	}
	// To a job without a limit Slurm gives a year.
	if !f.End.IsZero() && f.End.Sub(now) < noLimit {
		text += fmt.Sprintf(", until %s (%s)", f.End.Format("15:04"), max(0, f.End.Sub(now)).Round(time.Minute))
	}
	return text
}

// knownEnd is when the job's time is over, zero where that is not known (yet).
func (a *allocation) knownEnd() time.Time {
	if a == nil {
		return time.Time{}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end
}
