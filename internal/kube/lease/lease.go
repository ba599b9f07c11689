// Package lease elects the leader of a run with several control planes. The
// leader holds a Lease of the API server and renews it. Renewing needs the
// majority of etcd's members, so a node that is cut off loses its lease. The
// duties of a leader do not belong here.
package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"berth.dev/berth/internal/kube/outage"
)

const (
	// leaseName is the name of the object, in kube-system.
	leaseName = "berth-lead"
	// annotationKey names the annotation with what the successor of the leader needs.
	annotationKey = "berth.dev/note"
)

// errLost reports that this node no longer leads the run.
var errLost = errors.New("this node no longer leads the run")

// Lease is one node's view of the lease. Its methods must not be called
// concurrently.
type Lease struct {
	// Duration is the time after which a lease expires that nobody renews. Its
	// holder gives up earlier, after Deadline without a renewal. Period is the
	// interval between renewals. An attempt without an answer for Retry is followed by
	// another one. New sets all four.
	Duration, Deadline, Period, Retry time.Duration

	leases dynamic.ResourceInterface
	node   string
	// last is the object as this node last read or wrote it.
	last *unstructured.Unstructured
	// renewed is the time just before this node sent the last write that succeeded.
	// Other nodes see that write later, so for them the lease expires later.
	renewed time.Time
}

// New returns a node's view of the lease without a request. Its times allow for
// an election in etcd and a change of the API server on fully loaded machines.
func New(client dynamic.Interface, node string) *Lease {
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	return &Lease{
		Duration: 12 * time.Second, Deadline: 9 * time.Second, Period: time.Second, Retry: 3 * time.Second,
		leases: client.Resource(leases).Namespace(metav1.NamespaceSystem), node: node,
	}
}

// acquireLimit bounds the time of all attempts of Acquire.
const acquireLimit = 30 * time.Second

// Acquire creates the lease with this node as its first holder. It waits for an API server that
// does not answer.
func (l *Lease) Acquire(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, acquireLimit)
	defer cancel()
	err := outage.Outlast(ctx, func(again bool) error {
		err := l.create(ctx)
		if !again || !apierrors.IsAlreadyExists(err) {
			return err
		}
		// An earlier attempt has created it. Write it again, because that may be long ago.
		if _, err := l.read(ctx); err != nil {
			return err
		}
		if holder(l.last) != l.node {
			return fmt.Errorf("node %s holds it: %w", holder(l.last), errLost)
		}
		return l.takeOver(ctx, "")
	})
	if err != nil {
		return fmt.Errorf("acquire the lease %s: %w", leaseName, err)
	}
	return nil
}

// create creates the lease with this node as its holder.
func (l *Lease) create(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.Deadline/2)
	defer cancel()
	fresh := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": leaseName},
	}}
	l.setHolder(fresh, "")
	sent := time.Now()
	created, err := l.leases.Create(ctx, fresh, metav1.CreateOptions{})
	if err == nil {
		l.last, l.renewed = created, sent
	}
	return err
}

// setHolder makes this node the holder of the lease, renewed now.
func (l *Lease) setHolder(lease *unstructured.Unstructured, annotation string) {
	lease.SetAnnotations(map[string]string{annotationKey: annotation})
	lease.Object["spec"] = map[string]any{
		"holderIdentity":       l.node,
		"leaseDurationSeconds": int64(l.Duration / time.Second),
		"renewTime":            metav1.NowMicro().UTC().Format(metav1.RFC3339Micro),
	}
}

// AwaitExpiry waits until the lease has not been renewed for its duration, and
// acquires it. It returns the previous holder and that node's annotation. When this process
// was stopped, as by Slurm's suspension of a job, the holder may have been, too. So the
// lease then gets its whole duration again, once after each renewal: on busy processors,
// every late answer looks like a stop.
func (l *Lease) AwaitExpiry(ctx context.Context) (previous, annotation string, err error) {
	ticker := time.NewTicker(l.Period)
	defer ticker.Stop()
	var observed time.Time
	extended := false // since the last renewal that was observed
	// asked is the time before the read that preceded this node's last write, or zero.
	var asked time.Time
	// looked is when the last request ended.
	looked := time.Now()
	for {
		select {
		case <-ctx.Done():
			return "", "", context.Cause(ctx)
		case <-ticker.C:
		}
		now := time.Now()
		changed, err := l.read(ctx)
		if l.wasStopped(looked) && !extended {
			observed, extended = time.Now(), true
		}
		looked = time.Now()
		switch {
		case err != nil:
		case changed && !asked.IsZero() && holder(l.last) == l.node && time.Since(asked) < l.Deadline:
			// This node's write had succeeded, but its answer was late.
			l.renewed = asked
			return previous, annotation, nil
		case !asked.IsZero() && holder(l.last) == l.node:
			// It succeeded too long ago.
			asked = now
			if l.takeOver(ctx, annotation) == nil {
				return previous, annotation, nil
			}
		case changed:
			observed, extended = time.Now(), false // not renewTime, because clocks of nodes differ
		case time.Since(observed) > l.Duration:
			previous, annotation, asked = holder(l.last), l.last.GetAnnotations()[annotationKey], now
			if l.takeOver(ctx, annotation) == nil {
				return previous, annotation, nil
			}
			looked = time.Now()
		}
	}
}

// wasStopped reports whether this process was stopped for a while since a request ended.
// The next one begins after a Period at most, and ends after half a Deadline.
func (l *Lease) wasStopped(since time.Time) bool {
	return time.Since(since) > l.Deadline/2+2*l.Period
}

// read reads the lease and reports whether it has changed.
func (l *Lease) read(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Deadline/2)
	defer cancel()
	seen, err := l.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	changed := l.last == nil || l.last.GetResourceVersion() != seen.GetResourceVersion()
	l.last = seen
	return changed, nil
}

// takeOver makes this node the holder unless the lease has changed since it was
// read.
func (l *Lease) takeOver(ctx context.Context, annotation string) error {
	ctx, cancel := context.WithTimeout(ctx, l.Deadline/2)
	defer cancel()
	a := l.write(ctx, l.last, annotation)
	if a.err == nil {
		l.last, l.renewed = a.written, a.sent
	}
	return a.err
}

// write stores the lease with this node as its holder. It fails if the lease has
// changed since last was read or written.
func (l *Lease) write(ctx context.Context, last *unstructured.Unstructured, annotation string) attempt {
	mine := last.DeepCopy()
	l.setHolder(mine, annotation)
	sent := time.Now()
	written, err := l.leases.Update(ctx, mine, metav1.UpdateOptions{})
	return attempt{sent, written, err}
}

func holder(lease *unstructured.Unstructured) string {
	who, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	return who
}
