package controller

import (
	"context"
	"fmt"
	"time"

	coordinationapi "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
)

// LeaseName names the lease of the controller that leads in a namespace.
const LeaseName = "berth-slurm-jobs"

var (
	definitionsResource = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	leasesResource      = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
	eventsResource      = schema.GroupVersionResource{Version: "v1", Resource: "events"}
)

// lead waits for the lease and calls serve while this controller holds it. It returns
// when serve has returned, after the lease was lost or ctx ended, or if ctx ends before.
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
			// The elector calls it in a goroutine, whose end it does not await.
			OnStartedLeading: func(lease context.Context) {
				select {
				case leading <- lease:
				case <-electing.Done():
				}
			},
			OnStoppedLeading: func() {},
			OnNewLeader: func(identity string) {
				if identity == c.Identity {
					c.Log.Info("this controller serves BridgeJobs and SlurmJobs of " + c.place())
				} else {
					c.Log.Info("controller " + identity + " serves " + c.place() + "; this one waits for its end")
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("make elector: %w", err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		elector.Run(electing)
	}()
	select {
	case lease := <-leading:
		serving, end := context.WithCancel(ctx)
		forget := context.AfterFunc(lease, end)
		serve(serving)
		forget()
		end()
	case <-ctx.Done():
	case <-over:
	}
	stop()
	<-over
	return nil
}

// place names the namespaces that the controller serves.
func (c *Controller) place() string {
	if c.Namespace == "" {
		return "all namespaces"
	}
	return "namespace " + c.Namespace
}

// Leader returns the identity of the controller that leads in a namespace, or "".
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

// startEvents begins to record events, until the returned function is called.
func (c *Controller) startEvents() (stop func()) {
	broadcaster := record.NewBroadcaster()
	broadcaster.StartRecordingToSink(eventSink{c})
	c.events = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "berth-slurm-jobs"})
	return broadcaster.Shutdown
}

// eventSink writes events with the dynamic client.
type eventSink struct{ c *Controller }

func (s eventSink) Create(event *corev1.Event) (*corev1.Event, error) {
	object, err := runtime.DefaultUnstructuredConverter.ToUnstructured(event)
	if err != nil {
		return nil, err
	}
	created := &unstructured.Unstructured{Object: object}
	created.SetAPIVersion("v1")
	created.SetKind("Event")
	created, err = s.c.client.Resource(eventsResource).Namespace(event.Namespace).Create(context.Background(), created, metav1.CreateOptions{})
	return asEvent(created, err)
}

// Update creates the event again. The recorder patches repeated events instead.
func (s eventSink) Update(event *corev1.Event) (*corev1.Event, error) { return s.Create(event) }

func (s eventSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	patched, err := s.c.client.Resource(eventsResource).Namespace(event.Namespace).Patch(context.Background(), event.Name,
		types.StrategicMergePatchType, data, metav1.PatchOptions{})
	return asEvent(patched, err)
}

func asEvent(object *unstructured.Unstructured, err error) (*corev1.Event, error) {
	if err != nil {
		return nil, err
	}
	event := &corev1.Event{}
	return event, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, event)
}
