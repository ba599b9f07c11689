package slurm

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Queued is a job as squeue shows it.
type Queued struct {
	// ID is Slurm's number of the job. Name is the ID that users see. It differs from
	// ID for elements of arrays (12_3) and components (12+1).
	ID, Name string
	// State is Slurm's word, such as RUNNING; Reason is why a job waits.
	State, Reason string
	// JobName is the name that its owner gave it.
	JobName string
	UID     int
	Nodes   int
	// NodeList is Slurm's short form, empty for a job that has no nodes.
	NodeList string
	// Elapsed is the time that the job has run, Left the time that it may still run. Left
	// is negative if nothing limits it.
	Elapsed, Left time.Duration
}

// States of a job that matter here.
const (
	Running     = "RUNNING"
	Pending     = "PENDING"
	Suspended   = "SUSPENDED"
	Completing  = "COMPLETING"
	Configuring = "CONFIGURING"
)

// StateOf returns the state for Slurm's word. While Slurm sends a signal to a
// running job's nodes, it reports SIGNALING instead.
func StateOf(word string) string {
	if word == "SIGNALING" {
		return Running
	}
	return word
}

// queueFormat has the job's name at its end, because it may contain the separator.
const queueFormat = "%A|%i|%T|%U|%D|%N|%M|%L|%r|%j"

// Queue returns the jobs of a user that are not over. It asks the controller once.
func Queue(ctx context.Context, uid int, ask Ask) ([]Queued, error) {
	return queue(ctx, ask, "--user="+strconv.Itoa(uid))
}

// QueuedJob returns a job of any user, even if it ended a short while ago. ok is
// false if there is no such job.
func QueuedJob(ctx context.Context, id string, ask Ask) (job Queued, ok bool, err error) {
	jobs, err := queue(ctx, ask, "--jobs="+id, "--states=all")
	if IsUnknownJob(err) {
		return Queued{}, false, nil
	}
	if err != nil || len(jobs) == 0 {
		return Queued{}, false, err
	}
	return jobs[0], true, nil
}

// IsUnknownJob reports whether Slurm does not know the job that a command asked for, or does not
// know it any more.
func IsUnknownJob(err error) bool {
	return err != nil && strings.Contains(err.Error(), "Invalid job id")
}

// StepNodes returns the first nodes of each step of a job, at most most nodes of each.
// No node appears twice.
func StepNodes(ctx context.Context, job string, most int, ask Ask) ([]string, error) {
	output, err := ask(ctx, "squeue", "--noheader", "--steps", "--jobs="+job, "--format=%N")
	if err != nil {
		return nil, err
	}
	var first []string
	for line := range strings.Lines(string(output)) {
		nodes, err := ExpandHosts(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		for _, node := range nodes[:min(most, len(nodes))] {
			if !slices.Contains(first, node) {
				first = append(first, node)
			}
		}
	}
	return first, nil
}

// StepNamed finds the step of a job with the given name. It returns the step's ID,
// such as 12.0, and its first node. Both are empty if there is no such step. Slurm
// still lists nodes that the job has lost; StepNamed skips them.
//
// One element of an array has the ID of the array, and Slurm then lists the steps of
// all elements.
func StepNamed(ctx context.Context, job, name string, ask Ask) (id, head string, err error) {
	output, err := ask(ctx, "squeue", "--noheader", "--steps", "--jobs="+job, "--format=%i|%N|%j")
	if err != nil {
		return "", "", err
	}
	element := ""
	for line := range strings.Lines(string(output)) {
		fields := strings.SplitN(strings.TrimSpace(line), "|", 3)
		if len(fields) != 3 || fields[2] != name {
			continue
		}
		if of, _, _ := strings.Cut(fields[0], "."); strings.Contains(of, "_") {
			if element == "" {
				if element, err = elementName(ctx, job, ask); err != nil {
					return "", "", err
				}
			}
			if of != element {
				continue
			}
			job = element
		}
		nodes, err := ExpandHosts(fields[1])
		if err != nil || len(nodes) == 0 {
			return "", "", err
		}
		if len(nodes) > 1 {
			nodes, err = remaining(ctx, job, nodes, ask)
		}
		return fields[0], nodes[0], err
	}
	return "", "", nil
}

// elementName returns the name, such as 12_3, of the array element with an ID. It
// returns job unchanged if that is a name already, or if squeue does not list it.
func elementName(ctx context.Context, job string, ask Ask) (string, error) {
	if strings.Contains(job, "_") {
		return job, nil
	}
	output, err := ask(ctx, "squeue", "--noheader", "--jobs="+job, "--format=%A|%i")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(output)) {
		if id, name, _ := strings.Cut(strings.TrimSpace(line), "|"); id == job {
			return name, nil
		}
	}
	return job, nil
}

// alreadyEnding matches scancel's message if Slurm is already ending the job or the step:
// ESLURM_ALREADY_DONE and ESLURM_INVALID_JOB_ID (slurm_errno.c).
var alreadyEnding = []string{"already completing or completed", "Invalid job id specified"}

// TerminateStep has Slurm send SIGTERM to the step with an ID. It returns nil if the
// step is already ending, because Slurm has then sent the signal.
func TerminateStep(ctx context.Context, id string, ask Ask) error {
	_, err := ask(ctx, "scancel", "--signal=TERM", id)
	for _, text := range alreadyEnding {
		if err != nil && strings.Contains(err.Error(), text) {
			return nil
		}
	}
	return err
}

// remaining returns the nodes of a step that its job still has. It returns all nodes
// of the step if none is left, and with an error.
func remaining(ctx context.Context, job string, nodes []string, ask Ask) ([]string, error) {
	has, err := JobNodes(ctx, job, ask)
	if err != nil {
		return nodes, err
	}
	left := slices.DeleteFunc(slices.Clone(nodes), func(node string) bool { return !slices.Contains(has, node) })
	if len(left) == 0 {
		return nodes, nil
	}
	return left, nil
}

// HasComponents reports whether a job is heterogeneous; Slurm calls its parts
// components.
func HasComponents(ctx context.Context, job string, ask Ask) (bool, error) {
	output, err := ask(ctx, "squeue", "--noheader", "--jobs="+job, "--format=%i")
	return strings.Contains(string(output), "+"), err
}

// JobNodes returns the nodes that a job has now, without the nodes that it has lost.
func JobNodes(ctx context.Context, job string, ask Ask) ([]string, error) {
	output, err := ask(ctx, "squeue", "--noheader", "--jobs="+job, "--format=%N")
	if err != nil {
		return nil, err
	}
	var has []string
	for line := range strings.Lines(string(output)) {
		hosts, err := ExpandHosts(strings.TrimSpace(line))
		if err != nil {
			return nil, err
		}
		has = append(has, hosts...)
	}
	return has, nil
}

func queue(ctx context.Context, ask Ask, which ...string) ([]Queued, error) {
	output, err := ask(ctx, append([]string{"squeue", "--noheader", "--format=" + queueFormat}, which...)...)
	if err != nil {
		return nil, err
	}
	var jobs []Queued
	for line := range strings.Lines(string(output)) {
		job, err := parseQueued(strings.TrimRight(line, "\n"))
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, job)
	}
	return jobs, nil
}

func parseQueued(line string) (Queued, error) {
	fields := strings.SplitN(line, "|", strings.Count(queueFormat, "|")+1)
	if len(fields) != strings.Count(queueFormat, "|")+1 {
		return Queued{}, fmt.Errorf("read the line %q of squeue: %d fields, not %d", line, len(fields), strings.Count(queueFormat, "|")+1)
	}
	job := Queued{
		ID: fields[0], Name: fields[1], State: StateOf(fields[2]), NodeList: fields[5], Reason: fields[8], JobName: fields[9],
		Left: -1,
	}
	job.UID, _ = strconv.Atoi(fields[3])
	job.Nodes, _ = strconv.Atoi(fields[4])
	job.Elapsed, _ = parseSpan(fields[6])
	if left, ok := parseSpan(fields[7]); ok {
		job.Left = left
	}
	return job, nil
}

// FormatSpan formats a time as Slurm does: days-hours:minutes:seconds, without
// leading parts that are zero. A negative time counts as zero.
func FormatSpan(span time.Duration) string {
	seconds := int64(max(0, span) / time.Second)
	days, hours, minutes := seconds/86400, seconds/3600%24, seconds/60%60
	switch {
	case days > 0:
		return fmt.Sprintf("%d-%02d:%02d:%02d", days, hours, minutes, seconds%60)
	case hours > 0:
		return fmt.Sprintf("%d:%02d:%02d", hours, minutes, seconds%60)
	}
	return fmt.Sprintf("%d:%02d", minutes, seconds%60)
}

// parseSpan parses a time of squeue: days-hours:minutes:seconds, where the first
// parts may be missing. It returns false for any other text, such as UNLIMITED and
// INVALID.
func parseSpan(text string) (time.Duration, bool) {
	var span time.Duration
	if days, rest, ok := strings.Cut(text, "-"); ok {
		n, err := strconv.Atoi(days)
		if err != nil {
			return 0, false
		}
		span, text = time.Duration(n)*24*time.Hour, rest
	}
	parts := strings.Split(text, ":")
	if len(parts) < 2 || len(parts) > 3 {
		return 0, false
	}
	unit := time.Second
	for i := len(parts) - 1; i >= 0; i-- {
		n, err := strconv.Atoi(parts[i])
		if err != nil || n < 0 {
			return 0, false
		}
		span += time.Duration(n) * unit
		unit *= 60
	}
	return span, true
}

// NamedStep is a step of a job, as the processes in it know it.
type NamedStep struct {
	// Job is the job's number, also for one element of an array. Restarts counts the
	// starts of a job that Slurm requeued.
	Job            string
	Step, Restarts int
	// Head is the step's first node.
	Head string
}

// FindStep finds the step of a job with the given name. ok is false if there is none.
func FindStep(ctx context.Context, job, name string, ask Ask) (found NamedStep, ok bool, err error) {
	id, head, err := StepNamed(ctx, job, name, ask)
	if err != nil || id == "" {
		return NamedStep{}, false, err
	}
	_, step, _ := strings.Cut(id, ".")
	if found.Step, err = strconv.Atoi(step); err != nil {
		return NamedStep{}, false, fmt.Errorf("read the step %q of squeue: %w", id, err)
	}
	said, err := showJob(ctx, Job{ID: job}, ask)
	if err != nil {
		return NamedStep{}, false, err
	}
	found.Head = head
	found.Job, _ = field(said, "JobId")
	restarts, _ := field(said, "Restarts")
	if found.Restarts, err = strconv.Atoi(restarts); err != nil || found.Job == "" {
		return NamedStep{}, false, fmt.Errorf("read the number and the restarts of job %s from scontrol: JobId=%q Restarts=%q", job, found.Job, restarts)
	}
	return found, true, nil
}
