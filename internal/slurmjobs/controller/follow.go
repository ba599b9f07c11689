package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"berth.dev/berth/internal/job/queue"
	"berth.dev/berth/internal/slurmjobs/kinds"
)

// minStartChange is the smallest change of a job's expected start that is written to its status.
const minStartChange = 2 * time.Minute

// poll reads the states of the jobs of all objects with one call of Slurm.States. It queues objects
// whose jobs have changed, and objects that have a problem or are being deleted.
func (c *Controller) poll(ctx context.Context) {
	jobs := map[string]string{}
	following := map[string]target{} // by UID
	var urgent []target              // to be queued even if their jobs have not changed
	for kind, informer := range c.informer {
		for _, item := range informer.GetStore().List() {
			object := item.(*unstructured.Unstructured)
			// Converting each status to kinds.Status would need most of the time of a poll.
			field := func(name string) string {
				text, _, _ := unstructured.NestedString(object.Object, "status", name)
				return text
			}
			number := field("jobID")
			if number == "" || kinds.Ended(field("state")) {
				continue
			}
			uid, t := string(object.GetUID()), targetOf(kind, object)
			jobs[uid] = number
			released, _, _ := unstructured.NestedBool(object.Object, "status", "released")
			switch {
			case object.GetDeletionTimestamp() != nil || released && (field("message") != "" || kinds.Killed(object) || c.podProblem(t) != ""):
				urgent = append(urgent, t)
			case released:
				following[uid] = t
			}
		}
	}
	if len(jobs) == 0 {
		return
	}
	states, err := c.Slurm.States(ctx, jobs)
	if ctx.Err() != nil {
		return
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	c.mu.Lock()
	before, sameFailure := c.states, c.slurmError == failure
	c.slurmError = failure
	if err == nil {
		c.states = states
	}
	c.mu.Unlock()
	for uid, t := range following {
		// An object that was released during the last poll has not seen its result.
		_, followed := c.followed[uid]
		state, known := states[uid]
		if !sameFailure || err == nil && (!followed || !known || before[uid] != state) {
			urgent = append(urgent, t)
		}
	}
	c.followed = following
	for _, t := range urgent {
		c.queue.Add(t)
	}
}

// podProblem returns the reason why an object has no pod, or "".
func (c *Controller) podProblem(t target) string {
	if c.PodProblem == nil {
		return ""
	}
	return c.PodProblem(kinds.Reference{Kind: t.kind, Namespace: t.namespace, Name: t.name})
}

// follow updates the status of an object with a released job from the last poll. It reports a
// problem with the job in the status.
func (c *Controller) follow(ctx context.Context, t target, object *unstructured.Unstructured, status kinds.Status, problem error) error {
	c.mu.Lock()
	state, known := c.states[string(object.GetUID())]
	message := c.slurmError
	c.mu.Unlock()
	if message == "" && problem != nil {
		message = problem.Error()
	}
	next := status
	if known && state.ID == status.JobID && state.State != "" {
		next = statusOf(status, state)
		if c.Seal != nil && state.Output != "" { // otherwise the path may be somebody else's
			next.OutputSeal = c.Seal(string(object.GetUID()), state.Output)
		}
	}
	if kinds.Ended(next.State) && kinds.HasResults(object) {
		next.Results = kinds.Collecting
	}
	reason := "SlurmUnavailable"
	if message == "" {
		message, reason = c.podProblem(t), "NoPod"
	}
	if message != "" && !kinds.Ended(next.State) {
		next.Message = message
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
	c.recordChange(object, status, next, reason)
	return nil
}

// statusOf returns the status with the fields of a state of Slurm.
func statusOf(status kinds.Status, state queue.State) kinds.Status {
	next := status
	next.State, next.Reason, next.Message = state.State, state.Reason, ""
	next.Partition, next.Nodes, next.Restarts, next.Output = state.Partition, state.Nodes, state.Restarts, state.Output
	next.Submitted, next.Started, next.Ended, next.ExpectedStart = kinds.Time(state.Submitted), kinds.Time(state.Start), "", ""
	next.ExitCode, next.Signal, next.Elapsed = nil, 0, ""
	if next.Output == "" {
		next.Output = status.Output // a state from the accounting or a record has no path
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
			state.ExpectedStart.Sub(before).Abs() < minStartChange {
			next.ExpectedStart = status.ExpectedStart
		}
	}
	if ptr.Equal(status.ExitCode, next.ExitCode) {
		next.ExitCode = status.ExitCode // so that == compares statuses
	}
	return next
}

// describeEnd returns a message about the end of a job.
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
