package podcni

import (
	"context"
	"maps"
)

// attempt has plugins connect a pod, or look whether it still is. It goes on beside all
// others: some plugins take seconds, and some hang.
type attempt struct {
	cancel context.CancelFunc
	// done is closed at the end, after which outcome may be read.
	done    chan struct{}
	outcome Outcome
	// told: outcome is known to the caller of Apply.
	told bool
}

func (a *attempt) running() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// outcome is what has become of a pod, as far as plugins have said. The caller holds the
// mutex.
func (n *Network) outcome(ctx context.Context, pod Pod, check bool) Outcome {
	if a := n.abandoned[pod.ID]; a != nil && a.running() {
		return Outcome{Pending: true}
	}
	if a := n.attempts[pod.ID]; a != nil {
		switch {
		case a.running():
			return Outcome{Pending: true}
		case !a.told:
			a.told = true
			return a.outcome
		case a.outcome.Err != nil && !pod.Again && !check:
			// Of two pods that fail, the end of one must not be the next attempt of the other.
			return a.outcome
		}
		delete(n.attempts, pod.ID)
	}
	if !check {
		former, result, err := n.kept(pod)
		switch {
		case err != nil:
			return n.fail(pod, err)
		case former != nil && result != nil:
			return n.connected(pod, result)
		}
	}
	a := &attempt{done: make(chan struct{})}
	// It is the pod's, not that of whoever happened to ask first.
	ctx, a.cancel = context.WithTimeout(context.WithoutCancel(ctx), n.limit)
	n.attempts[pod.ID] = a
	go func() {
		defer a.cancel()
		a.outcome = n.attach(ctx, pod, check)
		a.outcome.Checked = check
		close(a.done)
		n.ended()
	}()
	return Outcome{Pending: true}
}

// abandon ends what plugins do for some pods, so that it may be undone. All get the
// signal before the first is waited for, and none is for long: where a plugin waits for a
// mount that hangs, no signal reaches it. Its pod's removal waits then. The caller holds
// the mutex.
func (n *Network) abandon(which func(id string) bool) {
	maps.DeleteFunc(n.abandoned, func(_ string, a *attempt) bool { return !a.running() })
	var all []*attempt
	for id, a := range n.attempts {
		if which(id) {
			a.cancel()
			all = append(all, a)
			delete(n.attempts, id)
			n.abandoned[id] = a
		}
	}
	enough, cancel := context.WithTimeout(context.Background(), outputDelay)
	defer cancel()
	for _, a := range all {
		a.wait(enough)
	}
}

// wait says whether the attempt has ended before the context.
func (a *attempt) wait(ctx context.Context) bool {
	select {
	case <-a.done:
		return true
	case <-ctx.Done():
		return !a.running()
	}
}
