package podcni

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// removalWait bounds the time that new pods wait for removals. A pod that is already
	// connected has a working interface, and addresses are rarely all in use.
	removalWait = 2 * time.Second
	// hungRemovalWait replaces removalWait while plugins hang.
	hungRemovalWait = removalWait / 20
	// longestPause is the longest pause between two attempts to disconnect a pod.
	longestPause = 5 * time.Minute
)

// removal disconnects a pod that is no longer wanted. If its plugins fail or hang,
// later calls of Apply try again.
type removal struct {
	cancel context.CancelFunc
	// done is closed at the end of an attempt.
	done chan struct{}
	// err is the result of the attempt. Read it only after done is closed.
	err error
	// namespace is the path that the plugins received.
	namespace string
	// reported reports whether Apply has returned err to its caller.
	reported bool
	// ended is the time when the last attempt failed. The next attempt starts no earlier
	// than pause after that.
	ended time.Time
	pause time.Duration
}

func (r *removal) running() bool {
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// hung reports whether the plugins were killed because they took too long.
func (r *removal) hung() bool { return errors.Is(r.err, context.DeadlineExceeded) }

// due reports whether it is time for another attempt.
func (r *removal) due() bool { return !r.running() && r.err != nil && time.Since(r.ended) >= r.pause }

// removeAll starts to disconnect pods, and waits briefly for those whose plugins did
// not hang before. The caller holds the mutex.
func (n *Network) removeAll(ctx context.Context, ids []string, inUse map[string]bool) error {
	wait := removalWait
	for id, r := range n.removals {
		switch {
		case r.running():
			wait = hungRemovalWait
		case r.err == nil:
			delete(n.removals, id)
		}
	}
	var problems []error
	var awaited []string
	for _, id := range ids {
		former := n.removals[id]
		if former != nil && !former.due() {
			continue
		}
		r, err := n.remove(ctx, id, inUse)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		if former == nil || !former.hung() {
			awaited = append(awaited, id)
		}
		if former != nil {
			// The second attempt comes with the next call; after that the pauses
			// grow.
			r.pause = min(max(2*former.pause, limit), longestPause)
			problems = append(problems, former.takeError())
		}
		n.removals[id] = r
	}
	enough := time.NewTimer(wait)
	defer enough.Stop()
	late := false
	for _, id := range awaited {
		if !late {
			select {
			case <-n.removals[id].done:
			case <-enough.C:
				late = true
			case <-ctx.Done():
				late = true
			}
		}
		if n.removals[id].running() {
			problems = append(problems, fmt.Errorf("disconnect %s by CNI: the plugins have not ended yet: they continue while new pods are connected", id))
		}
	}
	for _, r := range n.removals {
		if !r.running() {
			problems = append(problems, r.takeError())
		}
	}
	return errors.Join(problems...)
}

// takeError returns the error of an attempt that has ended. Later calls return nil.
func (r *removal) takeError() error {
	if r.reported {
		return nil
	}
	r.reported = true
	return r.err
}

// remove starts to disconnect a pod, by the same list that connected it. It continues
// after the caller's context ends, because the pod is gone in any case.
func (n *Network) remove(ctx context.Context, id string, inUse map[string]bool) (*removal, error) {
	fail := func(err error) error { return fmt.Errorf("disconnect %s by CNI: %w", id, withKillReason(err)) }
	list, kept, err := n.begun(id)
	if err != nil {
		return nil, fail(err)
	}
	pod := Pod{ID: id, Namespace: kept.Namespace, Owner: kept.Owner}
	if inUse[pod.Namespace] {
		// A requeued job uses the same path for its namespace, and has an interface of
		// the same name in it.
		pod.Namespace = ""
	}
	r := &removal{done: make(chan struct{}), namespace: pod.Namespace}
	ctx, r.cancel = context.WithTimeout(context.WithoutCancel(ctx), n.limit)
	former := n.abandoned[id]
	go func() {
		defer close(r.done)
		defer r.cancel()
		if former != nil && !former.wait(ctx) {
			// What that attempt still does would not be undone.
			r.err, r.ended = fail(ctx.Err()), time.Now()
			return
		}
		if list != nil {
			if err := n.cni.DelNetworkList(ctx, list, pod.runtime()); err != nil {
				r.err, r.ended = fail(err), time.Now()
				return
			}
		}
		if err := os.Remove(n.file(id)); err != nil && !os.IsNotExist(err) {
			r.err, r.ended = fail(err), time.Now()
		}
	}()
	return r, nil
}

// interrupt cancels removals of a pod that is wanted again, and removals in the
// namespace of a wanted pod. They would mistake the new interface for the old one.
// The caller holds the mutex.
func (n *Network) interrupt(wanted map[string]Pod) {
	for _, pod := range wanted {
		for id, r := range n.removals {
			if id != pod.ID && r.namespace != pod.Namespace {
				continue
			}
			r.end()
			if id == pod.ID {
				delete(n.removals, id)
			}
		}
	}
}

// end cancels a removal that is still running. The caller tries again and knows the
// reason for the failure. Like an attempt, the removal is waited for only briefly.
func (r *removal) end() {
	if !r.running() || r.reported {
		return
	}
	r.reported = true
	r.cancel()
	select {
	case <-r.done:
	case <-time.After(outputDelay):
	}
}

// Close stops running plugins. The next Network continues their work.
func (n *Network) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.abandon(func(string) bool { return true })
	for id, r := range n.removals {
		r.end()
		delete(n.removals, id)
	}
	return nil
}
