package pilots

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"berth.dev/berth/internal/elastic/plan"
	"berth.dev/berth/internal/job/slurm"
)

// failure counts pilots that were of no use: pilots of a group that ended before a node was ready,
// or pilots for a pod that the scheduler did not place there.
type failure struct {
	count  int
	reason string
	until  time.Time
	// size is the size of the pilot that failed.
	size plan.Size
}

// pause begins a pause, longer after each one, up to longest. It reports false during a pause.
func (f *failure) pause(now time.Time, longest time.Duration) bool {
	if !now.After(f.until) {
		return false
	}
	f.count++
	f.until = now.Add(min(firstPause<<min(f.count, 10), longest))
	return true
}

// text returns the reason why no pilot is submitted before the pause ends.
func (f *failure) text() string {
	return f.reason + "; another job follows at " + f.until.Format("15:04:05")
}

// judge decides whether a pilot stays.
func (l *Loop) judge(p *pilot, needed bool, in input, now time.Time) {
	nodes := in.nodesOf[p.UID]
	if p.Joined && p.seen == 0 {
		p.seen = p.Nodes // an earlier loop has seen them, and a node that has left does not return
	}
	var ready []plan.Node
	for _, node := range nodes {
		if p.Has(node.Node) {
			ready = append(ready, node)
		}
	}
	if len(ready) > p.seen {
		p.seen, p.Joined, p.arrived = len(ready), true, now
		l.measure(p, ready)
	}
	if p.Leaving || p.final != nil {
		return
	}
	if needed {
		p.unneeded = time.Time{}
	} else if p.unneeded.IsZero() {
		p.unneeded = now
	}
	switch {
	case p.State != slurm.Running || p.seen >= p.Nodes:
		p.joining = time.Time{}
	case p.joining.IsZero():
		p.joining = now
	case now.Sub(p.joining) >= joinLimit:
		l.fail(p, fmt.Sprintf("%d of %d nodes of job %s were not ready %s after its start", p.Nodes-p.seen, p.Nodes, p.Job, joinLimit))
		p.seen = p.Nodes // pods do not wait for them
		p.Leaving = !p.Joined
	}
	busy := needed || !p.started()
	for _, node := range nodes {
		busy = busy || slices.ContainsFunc(node.Pods, keepsNode)
	}
	var unplaced []types.UID
	if !busy {
		unplaced = p.unplaced(in.Waiting)
		busy = len(unplaced) > 0 && now.Sub(p.arrived) < placeLimit
	}
	switch {
	case busy:
		p.idle, p.idling = time.Time{}, false
	case p.idle.IsZero():
		p.idle = now
	case now.Sub(p.idle) >= l.Idle && !p.idling:
		p.idling = true
		if slices.ContainsFunc(ready, func(node plan.Node) bool { return !node.Spec.Unschedulable }) {
			// The scheduler has a reason that the plan does not know, and would not use another node either.
			for _, pod := range unplaced {
				l.hold(pod, fmt.Sprintf("job %s brought a node for the pod, but the scheduler did not place it there; the pod's events FailedScheduling have the reason", p.Job), now)
			}
		}
	}
	if !p.started() && !p.unneeded.IsZero() && now.Sub(p.unneeded) >= unneededFor {
		p.Leaving = true
	}
}

// delays reports whether new pilots wait for the scheduler to look at other pods: at most for
// judgeLimit, because pods may appear all the time. The caller holds mu.
func (l *Loop) delays(unjudged bool, now time.Time) bool {
	switch {
	case !unjudged:
		l.delayed = time.Time{}
	case l.delayed.IsZero():
		l.delayed = now
	}
	return unjudged && now.Sub(l.delayed) < judgeLimit
}

// await notes that a pod waits for the pilot.
func (p *pilot) await(pod types.UID) {
	if p.awaitedBy == nil {
		p.awaitedBy = map[types.UID]bool{}
	}
	p.awaitedBy[pod] = true
}

// unplaced returns the pods that have waited for the pilot and still wait.
func (p *pilot) unplaced(waiting []plan.Pod) (pods []types.UID) {
	for _, pod := range waiting {
		if p.awaitedBy[pod.UID] {
			pods = append(pods, pod.UID)
		}
	}
	return pods
}

// holdAfterFailures holds the pods of a controller after a pod with a pilot for itself has failed
// soon. Many controllers start another pod at once, whose pilot would be a new one. The caller holds
// mu.
func (l *Loop) holdAfterFailures(failed []*corev1.Pod, now time.Time) {
	byOnly := map[string]*pilot{}
	for _, p := range l.pilots {
		byOnly[p.Only] = p
	}
	for _, pod := range failed {
		p, owner, began := byOnly[plan.Pod{Pod: pod, Alone: true}.Only()], metav1.GetControllerOf(pod), pod.Status.StartTime
		if p == nil || p.failed || owner == nil {
			continue
		}
		p.failed = true
		if began != nil && now.Sub(began.Time) < soon {
			l.hold(owner.UID, fmt.Sprintf("pod %s of %s %s failed within %s on the node of job %s", pod.Name, owner.Kind, owner.Name, soon, p.Job), now)
		}
	}
}

// hold lets no new pilot follow for a pod, or for the pods of a controller, for a time that is
// longer after each pause. The caller holds mu.
func (l *Loop) hold(uid types.UID, reason string, now time.Time) {
	if l.held[uid] == nil {
		l.held[uid] = &failure{}
	}
	if f := l.held[uid]; f.pause(now, longestHeld) {
		f.reason = reason
		l.Log.Warn(fmt.Sprintf("pods of %s: %s", uid, f.text()))
	}
}

// measure compares the ready nodes of a pilot with the request for it. If its pods do not fit, each
// plan would bring another node like it, so the next pilot waits. If they fit, the pause ends,
// unless a larger pilot has caused it. The caller holds mu.
func (l *Loop) measure(p *pilot, ready []plan.Node) {
	want := p.Size
	want.Pods = 0
	for _, node := range ready {
		if room := plan.Room(node.Node); !want.Within(room) {
			if room.Memory < want.Memory {
				// Its files are in memory, most likely.
				l.inMemory[strings.Join(p.Options, "\n")] = time.Now().Add(longestHeld)
			}
			l.fail(p, fmt.Sprintf("node %s of job %s has less room for pods than was requested", node.Name, p.Job))
			return
		}
	}
	key := failureKey(p.Request)
	if f := l.failures[key]; f != nil && f.size.Within(p.Size) {
		delete(l.failures, key)
	}
}

// nodeWith describes the nodes of pilots with options of sbatch. The caller holds mu.
func (l *Loop) nodeWith(options []string) Node {
	node := l.Node
	if _, inMemory := l.inMemory[strings.Join(options, "\n")]; inMemory {
		node.FilesInMemory = true
	}
	return node
}
