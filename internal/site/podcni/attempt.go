package podcni

import (
	"context"
	"maps"
)

// attempt connects or checks a pod. Attempts run concurrently: some plugins take
// seconds, and some hang.
type attempt struct {
	cancel context.CancelFunc
	// done is closed at the end. Read outcome only after that.
	done    chan struct{}
	outcome Outcome
	// reported reports whether Apply has returned outcome to its caller.
	reported bool
}

func (a *attempt) running() bool {
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// outcome returns the state of a pod as far as it is known, and starts an attempt
// where needed. The caller holds the mutex.
func (n *Network) outcome(ctx context.Context, pod Pod, check bool) Outcome {
	if a := n.abandoned[pod.ID]; a != nil && a.running() {
		return Outcome{Pending: true}
	}
	if a := n.attempts[pod.ID]; a != nil {
		switch {
		case a.running():
			return Outcome{Pending: true}
		case !a.reported:
			a.reported = true
			return a.outcome
		case a.outcome.Err != nil && !pod.Again && !check:
			// If two pods fail, the end of one must not start the next attempt of the
			// other.
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
	// The attempt belongs to the pod and outlives the caller that happened to start
	// it.
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

// abandon cancels the attempts of some pods, so that they can be undone. It signals
// all of them first and then waits briefly. A plugin that is blocked on a hanging
// mount receives no signal; the removal of its pod waits for it. The caller holds the
// mutex.
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

// wait reports whether the attempt ended before the context did.
func (a *attempt) wait(ctx context.Context) bool {
	select {
	case <-a.done:
		return true
	case <-ctx.Done():
		return !a.running()
	}
}
