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
	// State is Slurm's word, such as PENDING, or Unknown. Reason is Slurm's reason for it,
	// or a count of the parts of an array in each state.
	State, Reason    string
	Partition, Nodes string
	// ExitCode and Signal are the script's exit status. For an array they belong to the
	// first part in State.
	ExitCode, Signal int
	// Times are zero while they are unknown. ExpectedStart is only set for a pending job,
	// and Start and End are not.
	Submitted, Start, End, ExpectedStart time.Time
	Restarts                             int
	// Output is the path of the script's standard output, with patterns such as %j
	// replaced. It is empty for an array, which has one for each element.
	Output string
	// Held is true if the job waits for its user's release.
	Held bool
}

// Unknown is the state of a job that has ended in a way that nobody has recorded.
const Unknown = "UNKNOWN"

// Ended reports whether a job in a state will not run any more.
func Ended(state string) bool { return state == Unknown || batch.Ended(state) }

// forgottenAfter is the time that a job must be missing before its result is given up.
// sacct knows the end of a job some seconds late.
const forgottenAfter = time.Minute

// known holds the last state of a job and of its parts.
type known struct {
	id        string
	submitted time.Time
	parts     map[string]listed
	// missing is the time since which Slurm does not know the job.
	missing time.Time
	// whole is set when elements that squeue had forgotten were added to an ended array.
	whole bool
	// final is set when the job has ended and the queue has forgotten it.
	final *State
}

// States returns the states of jobs, by UID. The argument maps the UIDs of unfinished
// objects to the numbers of their jobs. The answer of one squeue per interval serves all
// calls. States also cancels held jobs that an object has in addition to a job that was
// released: their submissions had an unknown result.
func (c *Client) States(ctx context.Context, jobs map[string]string) (map[string]State, error) {
	snapshot, err := c.look(ctx, time.Now().Add(-c.options.Interval))
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
	var asked []string
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
				asked = append(asked, id)
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
				asked = append(asked, id)
			}
		}
	}
	c.mu.Unlock()

	accounted := map[string][]listed{}
	for _, job := range c.sacct(ctx, asked) {
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
			states[uid] = c.left(uid, k, accounted[id])
		}
	}
	duplicates := c.duplicates(snapshot, jobs, ours)
	c.mu.Unlock()
	for _, id := range duplicates {
		c.options.Log.Warn("cancel a second job of an object: its submission had an unknown result", "job", id)
		if err := c.tell(ctx, "scancel", id); err != nil {
			return nil, err
		}
	}
	return states, nil
}

// isOther reports whether the job of a number is not the object's. Slurm reuses numbers
// after the highest one, and after it has lost its state.
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

// left returns the state of a job that has left the queue.
func (c *Client) left(uid string, k *known, accounted []listed) State {
	k.merge(accounted)
	state := k.state(uid)
	if !Ended(state.State) {
		ended, ok := c.recorded(uid, k, state)
		switch {
		case ok:
			state = ended
		case time.Since(k.missing) < forgottenAfter:
			// Slurm may answer after its controller has read its state.
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

// recorded returns the end of a job as its batch script recorded it. It returns false if the
// script recorded no end. Then the Reason of the state describes what happened.
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
		if r.code != 0 {
			ended.State, ended.ExitCode = "FAILED", r.code
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

// merge adds new states of parts. It keeps parts that have ended and are missing in them,
// because Slurm forgets ended elements of an array while others still run.
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

// state returns the state of all parts. The state of the whole is that of a part that
// runs, otherwise of one that has not ended, and otherwise of one that did not succeed.
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
		state.ExitCode, state.Signal = first.code, first.signal
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

// duplicates returns each held job of an object whose own job has been released. Such a job
// comes from a submission that Slurm carried out after the client had given it up. Its batch
// script would do nothing. The caller holds c.mu.
func (c *Client) duplicates(snapshot *snapshot, jobs map[string]string, ours map[string]*known) []string {
	var ids []string
	byScript := map[string]string{}
	for uid := range jobs {
		byScript[filepath.Join(Folder(c.options.State, uid), ScriptName)] = uid
	}
	for _, job := range snapshot.jobs {
		if !job.isHeld {
			continue
		}
		uid := job.object()
		if uid == "" {
			path, _, _ := strings.Cut(job.command, " ")
			uid = byScript[path]
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
