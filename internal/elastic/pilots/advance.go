package pilots

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/job/queue"
)

// hasWork reports whether a worker has something to do for a pilot. The caller holds mu.
func (p *pilot) hasWork() bool {
	return p.final != nil || p.idling || p.closed && !p.Leaving || !p.Released || !p.exists || p.status != p.saved || p.Leaving && p.State != cancelled
}

// cancelled is the state of a pilot whose job this process has cancelled, until Slurm reports
// another one.
const cancelled = "CANCELLING"

// advance brings a pilot as far as it goes now. A record is written before each request to Slurm
// that needs it: a loop that is killed at any moment continues from the record. A job is submitted
// held, and may start only when the record has its number.
func (l *Loop) advance(ctx context.Context, p *pilot) {
	err := l.steps(ctx, p)
	defer l.changed()
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	p.busy = false
	switch {
	case err == nil:
		p.pause, p.problem = 0, ""
		p.next = now.Add(settle)
		if p.Job != "" {
			l.submitPause = 0
		}
		return
	case p.Job == "" && ofSlurm(err) && now.After(l.nextSubmit):
		// Slurm would refuse other pilots, too.
		l.submitPause = longer(l.submitPause)
		l.nextSubmit = now.Add(l.submitPause)
	}
	p.pause = longer(p.pause)
	p.next, p.problem = now.Add(p.pause), "no job is submitted for a new node yet: "+err.Error()
	if ofSlurm(err) {
		p.problem = "Slurm takes no job for a new node now: " + err.Error()
	}
	l.Log.Warn(fmt.Sprintf("pilot %s: %v; trying again in %s", p.UID, err, p.pause))
}

// ofSlurm reports whether an error is an answer of Slurm, or that there is none.
func ofSlurm(err error) bool {
	return errors.As(err, new(*queue.Refused)) || errors.As(err, new(*queue.Unavailable))
}

// longer returns the pause after another error.
func longer(pause time.Duration) time.Duration { return min(max(2*pause, firstPause), longestPause) }

func (l *Loop) steps(ctx context.Context, p *pilot) error {
	l.mu.Lock()
	r, exists, final, idling, closed := p.record, p.exists, p.final, p.idling, p.closed
	l.mu.Unlock()
	switch {
	case final != nil:
		return l.end(ctx, p, *final)
	case r.Job == "" && r.Leaving:
		id, found, err := l.Slurm.Find(ctx, r.UID)
		if err != nil {
			return err
		}
		if !found {
			return l.drop(ctx, p)
		}
		r.Job = id
		l.update(p, func(p *pilot) { p.Job = id })
	}
	switch {
	case idling && !r.Leaving:
		left, err := l.close(ctx, p, r)
		if err != nil || !left {
			return err
		}
		r.Leaving = true
	case closed && !r.Leaving:
		if err := l.reopen(ctx, p, r.Job); err != nil {
			return err
		}
	}
	if err := l.write(ctx, p, exists); err != nil {
		return err
	}
	if r.Job == "" {
		id, err := l.submit(ctx, p, r)
		if err != nil || id == "" {
			return err
		}
		r.Job = id
		if err := l.write(ctx, p, true); err != nil {
			return err
		}
	}
	switch {
	case r.Leaving:
		if err := l.Slurm.Cancel(ctx, r.Job); err != nil {
			return err
		}
		l.update(p, func(p *pilot) { p.State, p.saved.State = cancelled, cancelled })
	case !r.Released:
		if err := l.Slurm.Release(ctx, r.Job); err != nil {
			return err
		}
		l.update(p, func(p *pilot) { p.Released = true })
		return l.write(ctx, p, true)
	}
	return nil
}

// update changes a pilot.
func (l *Loop) update(p *pilot, change func(*pilot)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(p)
}

// write writes the record of a pilot if it has changed.
func (l *Loop) write(ctx context.Context, p *pilot, exists bool) error {
	l.mu.Lock()
	r, saved := p.record, p.saved
	l.mu.Unlock()
	if exists && r.status == saved {
		return nil
	}
	if err := l.save(ctx, r, exists); err != nil {
		return err
	}
	l.update(p, func(p *pilot) { p.exists, p.saved = true, r.status })
	return nil
}

// submit submits the job of a pilot, or finds the job that an earlier loop has submitted. It
// returns no number if Slurm refuses the job: then the pilot is gone.
func (l *Loop) submit(ctx context.Context, p *pilot, r record) (string, error) {
	l.mu.Lock()
	node := l.nodeWith(r.Options)
	l.mu.Unlock()
	id, err := l.Slurm.Submit(ctx, r.UID, scriptVersion, func() (queue.Job, error) {
		job := node.job(l.Job, r)
		return job, l.test(ctx, r, job)
	})
	refused := new(queue.Refused)
	switch {
	case errors.As(err, &refused) && !refused.Full:
		l.update(p, func(p *pilot) { l.refuse(p, "Slurm refuses the job of a node for it: "+refused.Message) })
		return "", l.drop(ctx, p)
	case err != nil:
		return "", err
	}
	l.Log.Info("a pilot is submitted", "pilot", r.UID, "job", id)
	l.update(p, func(p *pilot) { p.Job = id })
	return id, nil
}

// test returns an error if Slurm would never start a job. Slurm accepts a held job that no node can
// run, and reports that only after its release.
func (l *Loop) test(ctx context.Context, r record, job queue.Job) error {
	key := fmt.Sprintf("%s\n%d %+v", failureKey(r.Request), r.Nodes, r.Size)
	l.mu.Lock()
	recent := time.Now().Before(l.tested[key])
	l.mu.Unlock()
	if recent {
		return nil
	}
	err := l.Test(ctx, job)
	if refused := new(queue.Refused); errors.As(err, &refused) && !refused.Full {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.tested[key] = time.Now().Add(refusedFor)
	}
	return nil
}

// refuse remembers that Slurm refuses a pilot. Fewer pods may fit a smaller one. The caller holds
// mu.
func (l *Loop) refuse(p *pilot, reason string) {
	l.Log.Warn(fmt.Sprintf("pilot %s (%s): %s", p.UID, strings.Join(l.options(l.Job, p.record), " "), reason))
	if p.Only == "" && p.pods > 1 {
		l.fewer[p.Group()] = limit{p.pods / 2, time.Now().Add(refusedFor)}
		return
	}
	l.refusals = append(l.refusals, refusal{p.Request, reason, time.Now().Add(refusedFor)})
}

// drop removes a pilot without a job.
func (l *Loop) drop(ctx context.Context, p *pilot) error {
	if err := l.remove(ctx, p.UID); err != nil {
		return err
	}
	l.update(p, func(p *pilot) { delete(l.pilots, p.UID) })
	return nil
}

// end removes a pilot whose job has ended. After one that ended before its node was ready, others
// of the group wait.
func (l *Loop) end(ctx context.Context, p *pilot, final queue.State) error {
	l.mu.Lock()
	joined, leaving := p.Joined, p.Leaving
	l.mu.Unlock()
	if !joined && !leaving {
		when := "before its node was ready"
		if final.Nodes == "" {
			when = "before it started" // somebody has cancelled it, or a dependency has failed
		}
		reason := fmt.Sprintf("job %s ended %s: %s", final.ID, when, describeEnd(final))
		if last := lastLine(filepath.Join(queue.Folder(l.State, p.UID), outputName)); last != "" {
			reason += ": " + last
		}
		l.update(p, func(p *pilot) { l.fail(p, reason) })
	}
	return l.drop(ctx, p)
}

// fail makes other pilots of the group wait, longer after each failure. Jobs that end together count
// as one failure. The caller holds mu.
func (l *Loop) fail(p *pilot, reason string) {
	l.Log.Warn(fmt.Sprintf("pilot %s: %s", p.UID, reason))
	key := failureKey(p.Request)
	if l.failures[key] == nil {
		l.failures[key] = &failure{}
	}
	f := l.failures[key]
	f.reason = reason
	if f.pause(time.Now(), longestPause) {
		f.size = p.Size
	}
}

// failureKey identifies pilots that fail for the same reasons, because they have the same options.
func failureKey(r plan.Request) string {
	r.Only = ""
	return r.Group()
}

// describeEnd describes the end of a job.
func describeEnd(state queue.State) string {
	text := strings.ToLower(state.State)
	switch {
	case state.Signal != 0:
		text += fmt.Sprintf(" (signal %d)", state.Signal)
	case state.ExitCode != 0:
		text += fmt.Sprintf(" (exit code %d)", state.ExitCode)
	}
	return text
}

// lastLine returns the last line of the output of a job, if this host can read it.
func lastLine(path string) string {
	const most = 4096
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return ""
	}
	text := make([]byte, min(info.Size(), most))
	n, _ := file.ReadAt(text, info.Size()-int64(len(text)))
	lines := strings.Split(strings.TrimSpace(string(text[:n])), "\n")
	last := strings.TrimSpace(lines[len(lines)-1])
	return last[:min(len(last), 300)]
}

// close closes the nodes of an idle pilot to new pods, and reports whether they are still idle.
// Otherwise it opens them again. After an error the caller repeats it, or opens them if a pod has
// come meanwhile.
func (l *Loop) close(ctx context.Context, p *pilot, r record) (bool, error) {
	var all, open []string
	for _, node := range l.view.nodes() {
		if node.Labels[jobLabel] != r.Job {
			continue
		}
		all = append(all, node.Name)
		if !node.Spec.Unschedulable { // others were closed by somebody else, or by an earlier try
			open = append(open, node.Name)
		}
	}
	if err := l.cordon(ctx, open, true); err != nil {
		return false, err
	}
	for _, node := range all {
		pods, err := l.core.Pods("").List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", node).String()})
		if err != nil {
			return false, fmt.Errorf("list the pods of node %s: %w", node, err)
		}
		if !slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool { return keepsNode(&pod) }) {
			continue
		}
		l.update(p, func(p *pilot) { p.idle, p.idling = time.Time{}, false })
		return false, l.cordon(ctx, open, false)
	}
	l.Log.Info("a pilot without pods leaves", "pilot", r.UID, "job", r.Job)
	l.update(p, func(p *pilot) { p.Leaving = true })
	return true, nil
}

// reopen opens the nodes of a pilot that does not leave, if a loop has closed them.
func (l *Loop) reopen(ctx context.Context, p *pilot, job string) error {
	var closed []string
	for _, node := range l.view.nodes() {
		if node.Labels[jobLabel] == job && isClosed(node) {
			closed = append(closed, node.Name)
		}
	}
	if err := l.cordon(ctx, closed, false); err != nil {
		return err
	}
	l.update(p, func(p *pilot) { p.closed = false })
	return nil
}

// closedByLoop is the annotation of a node that a loop has closed to new pods, because the node is
// idle.
const closedByLoop = "slurm.berth.dev/idle"

// isClosed reports whether a loop has closed a node.
func isClosed(node *corev1.Node) bool { return node.Annotations[closedByLoop] != "" }

// cordon closes nodes to new pods, or opens them.
func (l *Loop) cordon(ctx context.Context, nodes []string, closed bool) error {
	patch, verb := []byte(`{"metadata":{"annotations":{"`+closedByLoop+`":null}},"spec":{"unschedulable":false}}`), "open"
	if closed {
		patch, verb = []byte(`{"metadata":{"annotations":{"`+closedByLoop+`":"true"}},"spec":{"unschedulable":true}}`), "close"
	}
	for _, node := range nodes {
		_, err := l.core.Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s node %s to new pods: %w", verb, node, err)
		}
	}
	return nil
}
