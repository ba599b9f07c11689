package controller

import (
	"context"
	"fmt"
	"time"

	coordinationapi "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// LeaseName is the name of the lease that controllers of a namespace compete for.
const LeaseName = "berth-slurm-jobs"

var leasesResource = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// lead acquires the lease, and then calls serve with a context that ends when the lease is lost
// or ctx ends. It returns nil after serve has returned, or when ctx ends before the lease is
// acquired. It returns an error only for invalid options.
func (c *Controller) lead(ctx context.Context, serve func(context.Context)) error {
	client, err := coordination.NewForConfig(c.Config)
	if err != nil {
		return fmt.Errorf("make client for the lease: %w", err)
	}
	// The lease is held until serve has returned.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	leading := make(chan context.Context)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: c.LeaseNamespace, Name: LeaseName},
			Client:     client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
		},
		ReleaseOnCancel: true,
		LeaseDuration:   c.LeaseDuration, RenewDeadline: c.RenewDeadline, RetryPeriod: c.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			// The elector does not wait for this function, which it calls in a
			// goroutine.
			OnStartedLeading: func(lease context.Context) {
				select {
				case leading <- lease:
				case <-electing.Done():
				}
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity == c.Identity {
					c.Log.Info("this controller serves BridgeJobs, SlurmJobs and WlmJobs of " + c.scope())
				} else {
					c.Log.Info("controller " + identity + " serves " + c.scope() + "; this one waits for the lease")
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("make elector: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		elector.Run(electing)
	}()
	select {
	case lease := <-leading:
		serving, cancel := context.WithCancel(ctx)
		unregister := context.AfterFunc(lease, cancel)
		serve(serving)
		unregister()
		cancel()
	case <-ctx.Done():
	case <-ended:
	}
	stop()
	<-ended
	return nil
}

// scope describes the namespaces that the controller serves.
func (c *Controller) scope() string {
	if c.Namespace == "" {
		return "all namespaces"
	}
	return "namespace " + c.Namespace
}

// Leader returns the identity of the controller that holds the lease of a namespace. It returns
// "" if no controller does, or if the lease has expired.
func Leader(ctx context.Context, client dynamic.Interface, namespace string) (string, error) {
	object, err := client.Resource(leasesResource).Namespace(namespace).Get(ctx, LeaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the lease of the controller: %w", err)
	}
	lease := &coordinationapi.Lease{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, lease); err != nil {
		return "", err
	}
	spec := lease.Spec
	if spec.HolderIdentity == nil || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil ||
		time.Since(spec.RenewTime.Time) > time.Duration(*spec.LeaseDurationSeconds)*time.Second {
		return "", nil
	}
	return *spec.HolderIdentity, nil
}
