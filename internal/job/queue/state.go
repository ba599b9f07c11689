package queue

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/job/batch"
	"berth.dev/berth/internal/job/slurm"
)

// State is the state of the job of an object. An array or a heterogeneous job has one State
// for all its parts.
type State struct {
	UID, ID, Name string
	// State is Slurm's word, such as PENDING, or Unknown. Reason is Slurm's reason for it.
	// For an array, Reason counts the elements in each state.
	State, Reason    string
	Partition, Nodes string
	// ExitCode and Signal are the script's exit status. For an array they belong to the
	// first element in State.
	ExitCode, Signal int
	// Unknown times are zero. A pending job has ExpectedStart instead of Start and End.
	Submitted, Start, End, ExpectedStart time.Time
	Restarts                             int
	// Output is the path of the script's standard output, with placeholders such as %j
	// replaced. It is empty for an array, which has one file for each element.
	Output string
	// Held is true if the job cannot start before Release.
	Held bool
}

// Unknown is the state of a job whose end neither Slurm nor its batch script has recorded.
const Unknown = "UNKNOWN"

// Ended reports whether a job in a state has ended.
func Ended(state string) bool { return state == Unknown || batch.Ended(state) }

// forgottenAfter is the time after which a missing job without a recorded end becomes
// Unknown. sacct learns the end of a job some seconds late.
const forgottenAfter = time.Minute

// known holds the last state of a job and of its parts.
type known struct {
	id        string
	submitted time.Time
	parts     map[string]listed
	// missing is the time since which squeue does not list the job, or zero.
	missing time.Time
	// whole is true once elements that squeue no longer lists were added to an ended array.
	whole bool
	// final is set once squeue no longer lists the job and its end is known or given up.
	final *State
}

// States returns the states of jobs, by UID. jobs maps the UIDs of unfinished objects to the
// numbers of their jobs. One call of squeue per interval serves all calls of States. The error
// is an *Unavailable if Slurm does not answer.
//
// States also cancels the duplicates of released jobs, see duplicates.
func (c *Client) States(ctx context.Context, jobs map[string]string) (map[string]State, error) {
	// The last answer is nearly an interval old for a caller that asks once per interval.
	snapshot, err := c.snapshot(ctx, time.Now().Add(-c.options.Interval/2))
	if err != nil {
		return nil, err
	}
	byNumber := map[string][]listed{}
	for _, job := range snapshot.jobs {
		byNumber[job.root] = append(byNumber[job.root], job)
	}
	parts := map[string][]listed{} // by UID
	c.mu.Lock()
	maps.DeleteFunc(c.known, func(uid string, k *known) bool {
		_, wanted := jobs[uid]
		return !wanted && time.Since(k.submitted) > forgottenAfter
	})
	states, ours := map[string]State{}, map[string]*known{}
	var unlisted []string // jobs that squeue does not list in full
	for uid, id := range jobs {
		k := c.known[uid]
		if k == nil || k.id != id {
			k = &known{id: id}
			c.known[uid] = k
		}
		ours[uid] = k // Forget may remove it from c.known
		reused := isOther(uid, byNumber[id])
		if !reused {
			parts[uid] = byNumber[id]
		}
		switch {
		case k.final != nil:
			states[uid] = *k.final
		case len(parts[uid]) > 0:
			k.missing = time.Time{}
			k.merge(parts[uid])
			if k.lacksElements() {
				unlisted = append(unlisted, id)
			} else {
				states[uid] = k.state(uid)
			}
		case k.submitted.After(snapshot.began):
			states[uid] = State{UID: uid, ID: id, State: slurm.Pending, Held: true, Submitted: k.submitted}
		default:
			if k.missing.IsZero() {
				k.missing = time.Now()
			}
			if !reused { // sacct only knows the later job
				unlisted = append(unlisted, id)
			}
		}
	}
	c.mu.Unlock()

	accounted := map[string][]listed{}
	for _, job := range c.sacct(ctx, unlisted) {
		accounted[job.root] = append(accounted[job.root], job)
	}
	c.mu.Lock()
	for uid, id := range jobs {
		if _, done := states[uid]; done {
			continue
		}
		if k := ours[uid]; len(parts[uid]) > 0 {
			k.add(accounted[id])
			k.add(recordedElements(Folder(c.options.State, uid), id))
			k.whole = true
			states[uid] = k.state(uid)
		} else {
			states[uid] = c.stateOfMissing(uid, k, accounted[id])
		}
	}
	duplicates := c.duplicates(snapshot, jobs, ours)
	c.mu.Unlock()
	for _, id := range duplicates {
		c.options.Log.Warn("cancel a second job of an object: its submission had an unknown result", "job", id)
		if err := c.change(ctx, "scancel", id); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// isOther reports whether the listed job with the number of an object's job is another job.
// Slurm reuses numbers after the highest one, and after it has lost its state.
func isOther(uid string, parts []listed) bool {
	path := filepath.Join(string(filepath.Separator), uid, ScriptName) // in any folder of state
	other := false
	for _, part := range parts {
		if part.object() == uid || strings.Contains(part.command, path) {
			return false
		}
		// A plugin may have changed the comment.
		other = other || part.object() != "" || part.command != ""
	}
	return other
}

// stateOfMissing returns the state of a job that squeue does not list, from the accounting and
// the records of its batch script. The caller holds c.mu.
func (c *Client) stateOfMissing(uid string, k *known, accounted []listed) State {
	k.merge(accounted)
	state := k.state(uid)
	if !Ended(state.State) {
		ended, ok := c.recorded(uid, k, state)
		switch {
		case ok:
			state = ended
		case time.Since(k.missing) < forgottenAfter:
			// A slurmctld that has just started may not have read its state yet.
			if state.State == "" {
				state.State = slurm.Pending
			}
			return state
		default:
			state = ended
		}
	}
	k.final = &state
	return state
}

// recorded adds the end of a job to a state, as its batch script recorded it. If the script
// recorded no end, it returns false and the state Unknown, with a Reason.
func (c *Client) recorded(uid string, k *known, state State) (State, bool) {
	state.State, state.Held = Unknown, false
	state.Reason = fmt.Sprintf("Slurm does not know job %s any more, and the job has not begun to run", k.id)
	var result State
	found := false
	for _, r := range readRecords(Folder(c.options.State, uid), k.id) {
		if r.end.IsZero() {
			state.Start, state.Restarts = r.start, max(0, r.starts-1)
			state.Reason = fmt.Sprintf("Slurm does not know job %s any more, and its script recorded no end: it was killed, or its node failed", k.id)
			return state, false
		}
		ended := state
		ended.State, ended.Reason = "COMPLETED", ""
		ended.Start, ended.End, ended.Restarts = r.start, r.end, max(0, r.starts-1)
		if r.exitCode != 0 {
			ended.State, ended.ExitCode = "FAILED", r.exitCode
		}
		if !found || result.State == "COMPLETED" {
			result, found = ended, true
		}
	}
	if !found {
		return state, false
	}
	return result, true
}

// merge replaces the states of a job's parts by newer ones. It keeps ended parts that have no
// newer state, because Slurm forgets ended elements of an array while others still run.
func (k *known) merge(now []listed) {
	if len(now) == 0 {
		return
	}
	next := map[string]listed{}
	for _, part := range now {
		if old, ok := k.parts[part.part]; ok && part.stdout == "" {
			part.stdout, part.name, part.restarts = old.stdout, old.name, old.restarts
		}
		next[part.part] = part
	}
	for name, part := range k.parts {
		if _, ok := next[name]; !ok && batch.Ended(part.state) {
			next[name] = part
		}
	}
	k.parts = next
}

// lacksElements reports whether elements of an ended array may be missing in parts: squeue may
// have forgotten them before this process asked.
func (k *known) lacksElements() bool {
	for _, part := range k.parts {
		if !part.isArray || !batch.Ended(part.state) {
			return false
		}
	}
	return !k.whole
}

// add adds parts that have ended and that squeue does not list.
func (k *known) add(more []listed) {
	for _, part := range more {
		if _, ok := k.parts[part.part]; !ok && batch.Ended(part.state) {
			k.parts[part.part] = part
		}
	}
}

// state returns one state for all parts: the state of a part that runs, otherwise of a pending
// part, otherwise of a part that failed.
func (k *known) state(uid string) State {
	if len(k.parts) == 0 {
		return State{UID: uid, ID: k.id, Submitted: k.submitted}
	}
	names := slices.SortedFunc(maps.Keys(k.parts), func(a, b string) int {
		if d := k.parts[a].rank() - k.parts[b].rank(); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	first := k.parts[names[0]]
	state := State{
		UID: uid, ID: k.id, Name: first.name, State: first.state, Reason: first.reason, Partition: first.partition, Nodes: first.nodes,
		Submitted: first.submitted, Held: first.isHeld,
	}
	switch {
	case first.state == slurm.Pending:
		state.ExpectedStart = first.start
	case batch.Ended(first.state):
		state.ExitCode, state.Signal = first.exitCode, first.signal
		state.End = first.end
		fallthrough
	default:
		state.Start = first.start
	}
	counts, isArray := map[string]int{}, false
	for _, part := range k.parts {
		counts[part.state]++
		isArray = isArray || part.isArray
		state.Restarts = max(state.Restarts, part.restarts)
		if batch.Ended(state.State) && part.end.After(state.End) {
			state.End = part.end
		}
	}
	if isArray {
		var texts []string
		for _, name := range slices.Sorted(maps.Keys(counts)) {
			texts = append(texts, fmt.Sprintf("%d %s", counts[name], strings.ToLower(name)))
		}
		state.Reason = strings.Join(texts, ", ")
	} else {
		state.Output = first.stdout
	}
	return state
}

// rank orders the parts of a job: running, pending, failed, completed.
func (l listed) rank() int {
	switch {
	case l.state == slurm.Pending:
		return 1
	case !batch.Ended(l.state):
		return 0
	case l.state != "COMPLETED":
		return 2
	}
	return 3
}

// duplicates returns the numbers of held jobs of objects whose own job was released. Slurm
// creates such a job if it carries out a submission that the client had given up. Its batch
// script would do nothing. The caller holds c.mu.
func (c *Client) duplicates(snapshot *snapshot, jobs map[string]string, ours map[string]*known) []string {
	var ids []string
	byFolder := map[string]string{}
	for uid := range jobs {
		byFolder[Folder(c.options.State, uid)] = uid
	}
	for _, job := range snapshot.jobs {
		if !job.isHeld {
			continue
		}
		uid := job.object()
		if uid == "" {
			path, _, _ := strings.Cut(job.command, " ")
			uid = byFolder[filepath.Dir(path)]
		}
		own, ok := jobs[uid]
		if !ok || own == job.root {
			continue
		}
		if k := ours[uid]; k.final == nil && (len(k.parts) == 0 || k.state(uid).Held) {
			continue
		}
		ids = append(ids, job.root)
	}
	return ids
}
