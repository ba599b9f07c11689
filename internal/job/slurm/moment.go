package slurm

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Moment is a snapshot of the state of a job.
type Moment struct {
	// Running is true if the job runs and nothing has begun to end it.
	Running bool
	// End is the end of the job's time, or of the step's if that is earlier, or zero
	// if nothing limits them. Preemption with a grace time brings it forward.
	End time.Time
	// Limit is the end of the job's time limit, which is also known after the job has ended.
	// It is zero if there is none. The time that a job was suspended does not count.
	Limit time.Time
	// OfStep reports whether End is the end of the step.
	OfStep bool
	// Returns is true if the job is preempted and will start again: it has a
	// script, its owner permits it, and its partition's settings require it.
	Returns bool
	// Undecided is true if Slurm has not answered whether the job is preempted and returns.
	Undecided bool
	// Restarts counts the starts of the job that Slurm requeued. It counts one more as soon as a
	// running job is requeued.
	Restarts int
}

// Now queries the state of the job, and in a task the end of its step. If it returns
// an error, the Moment still holds what is known. Its End is zero then if the end of
// the job or of the step is unknown.
func Now(ctx context.Context, job Job, ask Ask) (Moment, error) {
	var (
		asking  sync.WaitGroup
		stepEnd time.Time
		stepErr error
	)
	if job.Place == PlaceTask {
		asking.Go(func() { stepEnd, stepErr = endOfStep(ctx, job, ask) })
	}
	moment, err := jobNow(ctx, job, ask)
	asking.Wait()
	switch {
	case stepErr != nil:
		moment.End, err = time.Time{}, errors.Join(err, stepErr)
	case err == nil || !moment.End.IsZero():
		end := earlier(moment.End, stepEnd)
		moment.End, moment.OfStep = end, end != moment.End
	}
	return moment, err
}

// earlier returns the first of two ends. The zero time is no end.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// endOfStep returns the end of a step that has its own time limit (srun --time,
// SLURM_TIMELIMIT), or zero for other steps. slurmd kills such a step KillWait after
// its SIGTERM, while the job goes on (22.05).
func endOfStep(ctx context.Context, job Job, ask Ask) (time.Time, error) {
	step := fmt.Sprintf("%s.%d", job.ID, job.StepID)
	// Without --all, steps in a hidden partition are not shown.
	said, err := ask(ctx, "scontrol", "--all", "--oneliner", "show", "step", step)
	if err != nil {
		return time.Time{}, err
	}
	limit, _ := field(string(said), "TimeLimit")
	if limit == "UNLIMITED" {
		return time.Time{}, nil
	}
	value, _ := field(string(said), "StartTime")
	start, err := ParseTime(value)
	span, ok := parseSpan(limit)
	if err != nil || start.IsZero() || !ok {
		return time.Time{}, fmt.Errorf("read the end of step %s from scontrol: it starts at %q and has the limit %q", step, value, limit)
	}
	return start.Add(span), nil
}

func jobNow(ctx context.Context, job Job, ask Ask) (Moment, error) {
	said, err := showJob(ctx, job, ask)
	if err != nil {
		return Moment{Undecided: true}, err
	}
	state, _ := field(said, "JobState")
	moment := Moment{Running: StateOf(state) == Running, Undecided: true}
	value, _ := field(said, "Restarts")
	moment.Restarts, _ = strconv.Atoi(value)
	if moment.End, err = readEnd(job, said); err != nil {
		return moment, err
	}
	value, _ = field(said, "StartTime")
	limit, _ := field(said, "TimeLimit")
	if start, err := ParseTime(value); err == nil && !start.IsZero() {
		if span, ok := parseSpan(limit); ok {
			moment.Limit = start.Add(span)
		}
	}
	value, _ = field(said, "PreemptTime")
	preempted, err := ParseTime(value)
	if err != nil {
		return moment, fmt.Errorf("read when job %s was preempted from scontrol: %w", job.ID, err)
	}
	if preempted.IsZero() {
		moment.Undecided = false
		return moment, nil
	}
	name, _ := field(said, "Partition")
	partition, err := ask(ctx, "scontrol", "--oneliner", "show", "partition", name)
	if err != nil {
		return moment, err
	}
	mode, _ := field(string(partition), "PreemptMode")
	requeue, _ := field(said, "Requeue")
	batch, _ := field(said, "BatchFlag")
	moment.Undecided = false
	moment.Returns = strings.Contains(mode, "REQUEUE") && requeue == "1" && batch != "0" && batch != ""
	if moment.End.IsZero() {
		// scontrol (22.05) hides the end of a job that had no limit, although
		// the controller has set one.
		grace, _ := field(string(partition), "GraceTime")
		seconds, err := strconv.Atoi(grace)
		if err != nil {
			return moment, fmt.Errorf("read the grace time of partition %s from scontrol: %w", name, err)
		}
		moment.End = preempted.Add(time.Duration(seconds) * time.Second)
	}
	return moment, nil
}

// Requeue makes a job begin again, which ends it now.
func Requeue(ctx context.Context, job Job, ask Ask) error {
	_, err := ask(ctx, "scontrol", "requeue", job.ID)
	return err
}
