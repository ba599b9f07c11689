// Package lead settles which node leads a run whose control plane several nodes
// have: a Lease, which the leading node renews. Whoever can renew it has the
// majority of the control planes behind him, so a node that is cut off cannot
// lead beside another. What leading means is the caller's business.
package lead

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
)

const (
	// leaseName is the object's, in kube-system.
	leaseName = "berth-lead"
	// noteKey is the annotation with what the leader leaves to its successor.
	noteKey = "berth.dev/note"
)

// ErrLost says that this node does not lead any more.
var ErrLost = errors.New("this node does not lead the run any more")

// Lead is one node's view of the lease. Its methods must not be called at the
// same time.
type Lead struct {
	// Duration is how long a lease stands that nobody renews, Deadline after
	// which its holder gives up, a little earlier, and Period the time between
	// two renewals. New sets them.
	Duration, Deadline, Period time.Duration

	leases dynamic.ResourceInterface
	node   string
	// lease is as it was seen last.
	lease *unstructured.Unstructured
}

// New makes no request. The times are longer than a change of the leading
// etcd member and of the API server in use takes, on machines whose processors
// are all busy.
func New(client dynamic.Interface, node string) *Lead {
	leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	return &Lead{
		Duration: 12 * time.Second, Deadline: 9 * time.Second, Period: time.Second,
		leases: client.Resource(leases).Namespace(metav1.NamespaceSystem), node: node,
	}
}

// Take makes this node the first to lead.
func (l *Lead) Take(ctx context.Context) (err error) {
	fresh := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": leaseName},
	}}
	l.sign(fresh, "")
	if l.lease, err = l.leases.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("take the lead of the run (lease %s): %w", leaseName, err)
	}
	return nil
}

// sign makes the lease this node's, from now on.
func (l *Lead) sign(lease *unstructured.Unstructured, note string) {
	lease.SetAnnotations(map[string]string{noteKey: note})
	lease.Object["spec"] = map[string]any{
		"holderIdentity":       l.node,
		"leaseDurationSeconds": int64(l.Duration / time.Second),
		"renewTime":            metav1.NowMicro().UTC().Format(metav1.RFC3339Micro),
	}
}

// Hold renews the lease until ctx ends, and returns nil then. It returns an
// ErrLost early when another node leads, or could. What note returns is left to
// the successor.
func (l *Lead) Hold(ctx context.Context, note func() string) error {
	ticker := time.NewTicker(l.Period)
	defer ticker.Stop()
	renewed := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		err := l.renew(ctx, note())
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			renewed = time.Now()
		case errors.Is(err, ErrLost):
			return err
		case time.Since(renewed) > l.Deadline:
			return fmt.Errorf("%w: for %s it could not renew its lease %s: %w", ErrLost, l.Deadline, leaseName, err)
		}
	}
}

// renew writes the lease, or finds out what it is now.
func (l *Lead) renew(ctx context.Context, note string) error {
	ctx, cancel := context.WithTimeout(ctx, l.Deadline/2)
	defer cancel()
	err := l.write(ctx, note)
	if !apierrors.IsConflict(err) {
		return err
	}
	// A write whose answer was lost, or another node's.
	seen, err := l.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if who := holder(seen); who != l.node {
		return fmt.Errorf("%w: node %s does", ErrLost, who)
	}
	l.lease = seen
	return nil
}

// Await returns when nobody has renewed the lease for its duration and it is
// this node's, with the node that had it and what that has left.
func (l *Lead) Await(ctx context.Context) (previous, note string, err error) {
	ticker := time.NewTicker(l.Period)
	defer ticker.Stop()
	var observed time.Time
	for {
		select {
		case <-ctx.Done():
			return "", "", context.Cause(ctx)
		case <-ticker.C:
		}
		changed, err := l.look(ctx)
		switch {
		case err != nil:
		case changed:
			observed = time.Now() // the clocks of nodes differ
		case time.Since(observed) > l.Duration:
			previous, note = holder(l.lease), l.lease.GetAnnotations()[noteKey]
			if l.claim(ctx, note) == nil {
				return previous, note, nil
			}
		}
	}
}

// look reads the lease and tells whether it has changed.
func (l *Lead) look(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Deadline/2)
	defer cancel()
	seen, err := l.leases.Get(ctx, leaseName, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	changed := l.lease == nil || l.lease.GetResourceVersion() != seen.GetResourceVersion()
	l.lease = seen
	return changed, nil
}

// claim makes the lease as it was seen last this node's.
func (l *Lead) claim(ctx context.Context, note string) error {
	ctx, cancel := context.WithTimeout(ctx, l.Deadline/2)
	defer cancel()
	return l.write(ctx, note)
}

// write signs the lease as it was seen last.
func (l *Lead) write(ctx context.Context, note string) error {
	mine := l.lease.DeepCopy()
	l.sign(mine, note)
	written, err := l.leases.Update(ctx, mine, metav1.UpdateOptions{})
	if err == nil {
		l.lease = written
	}
	return err
}

func holder(lease *unstructured.Unstructured) string {
	who, _, _ := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
	return who
}
