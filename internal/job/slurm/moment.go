package slurm

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Moment is the state of a job at a moment.
type Moment struct {
	// Running is true if the job runs and nothing has begun to end it.
	Running bool
	// End is the end of the job's time, or zero if nothing limits it. Preemption
	// with a grace time brings it forward.
	End time.Time
	// Returns is true if the job is preempted and will start again: it has a
	// script, its owner permits it, and its partition's settings require it.
	Returns bool
}

// Now queries the state of the job. If it returns an error, the Moment still holds
// what is known.
func Now(ctx context.Context, job Job, ask Ask) (Moment, error) {
	said, err := showJob(ctx, job, ask)
	if err != nil {
		return Moment{}, err
	}
	state, _ := field(said, "JobState")
	moment := Moment{Running: StateOf(state) == Running}
	if moment.End, err = readEnd(job, said); err != nil {
		return moment, err
	}
	value, _ := field(said, "PreemptTime")
	preempted, err := readTime(value)
	if err != nil {
		return moment, fmt.Errorf("read when job %s was preempted from scontrol: %w", job.ID, err)
	}
	if preempted.IsZero() {
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
