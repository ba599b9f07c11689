package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// startMoves is the smallest move of a job's expected start that changes its status.
const startMoves = 2 * time.Minute

// follow brings the status of a released job up to date with the last look at Slurm. It
// reports a problem with the job in the status.
func (c *Controller) follow(ctx context.Context, t target, object *unstructured.Unstructured, status kinds.Status, problem error) error {
	c.mu.Lock()
	state, known := c.states[string(object.GetUID())]
	away := c.away
	c.mu.Unlock()
	if away == "" && problem != nil {
		away = problem.Error()
	}
	next := status
	if known && state.ID == status.JobID && state.State != "" {
		next = statusOf(status, state)
	}
	if away != "" && !kinds.Ended(next.State) {
		next.Message = away
	}
	if !kinds.Ended(next.State) {
		// Without the finalizer, a deletion would not cancel the job.
		var err error
		if object, err = c.addFinalizer(ctx, t, object); err != nil {
			return err
		}
	}
	if next == status {
		return nil
	}
	if err := c.writeStatus(ctx, t, object, status, next); err != nil {
		return err
	}
	c.tell(object, status, next)
	return nil
}

// statusOf returns the status for a state of Slurm.
func statusOf(status kinds.Status, state queue.State) kinds.Status {
	next := status
	next.State, next.Reason, next.Message = state.State, state.Reason, ""
	next.Partition, next.Nodes, next.Restarts, next.Output = state.Partition, state.Nodes, state.Restarts, state.Output
	next.Submitted, next.Started, next.Ended, next.ExpectedStart = kinds.Time(state.Submitted), kinds.Time(state.Start), "", ""
	next.ExitCode, next.Signal, next.Elapsed = nil, 0, ""
	if next.Output == "" {
		next.Output = status.Output // a record of the job has no path
	}
	if kinds.Ended(state.State) {
		next.Ended = kinds.Time(state.End)
		if state.State != queue.Unknown {
			code := state.ExitCode
			next.ExitCode, next.Signal = &code, state.Signal
		}
		if !state.Start.IsZero() && state.End.After(state.Start) {
			next.Elapsed = state.End.Sub(state.Start).Round(time.Second).String()
		}
		next.Message = describeEnd(next)
	} else if state.Start.IsZero() || state.State == "PENDING" {
		next.Started = ""
		next.ExpectedStart = kinds.Time(state.ExpectedStart)
		if before, err := time.Parse(time.RFC3339, status.ExpectedStart); err == nil && !state.ExpectedStart.IsZero() &&
			state.ExpectedStart.Sub(before).Abs() < startMoves {
			next.ExpectedStart = status.ExpectedStart
		}
	}
	if same(status.ExitCode, next.ExitCode) {
		next.ExitCode = status.ExitCode
	}
	return next
}

// same compares numbers, so that statuses can be compared with ==.
func same(a, b *int) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// describeEnd describes how a job ended.
func describeEnd(status kinds.Status) string {
	var text strings.Builder
	fmt.Fprintf(&text, "job %s: %s", status.JobID, status.State)
	if status.Reason != "" && status.Reason != "None" {
		fmt.Fprintf(&text, " (%s)", status.Reason)
	}
	if status.ExitCode != nil && *status.ExitCode != 0 {
		fmt.Fprintf(&text, ", exit code %d", *status.ExitCode)
	}
	if status.Signal != 0 {
		fmt.Fprintf(&text, ", signal %d", status.Signal)
	}
	if status.Output != "" {
		fmt.Fprintf(&text, "; its output is in %s", status.Output)
	}
	return text.String()
}

// tell makes events of what changed.
func (c *Controller) tell(object *unstructured.Unstructured, was, next kinds.Status) {
	switch {
	case next.State == "COMPLETED" && was.State != next.State:
		c.events.Eventf(object, corev1.EventTypeNormal, "Completed", "%s", next.Message)
	case kinds.Ended(next.State) && was.State != next.State:
		c.events.Eventf(object, corev1.EventTypeWarning, "Failed", "%s", next.Message)
	case next.Restarts > was.Restarts:
		c.events.Eventf(object, corev1.EventTypeWarning, "Requeued", "Slurm requeued job %s", next.JobID)
	case next.State == "RUNNING" && was.State != next.State:
		c.events.Eventf(object, corev1.EventTypeNormal, "Started", "job %s runs on %s", next.JobID, next.Nodes)
	case next.State == "PENDING" && next.Reason != "" && (was.State != next.State || was.Reason != next.Reason):
		text := fmt.Sprintf("job %s waits: %s", next.JobID, next.Reason)
		if next.ExpectedStart != "" {
			text += "; Slurm expects to start it at " + next.ExpectedStart
		}
		c.events.Eventf(object, corev1.EventTypeNormal, "Pending", "%s", text)
	case next.Message != "" && was.Message != next.Message:
		c.events.Eventf(object, corev1.EventTypeWarning, "SlurmUnavailable", "%s", next.Message)
	}
}
