package node

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/volumemanager"
	// Linked to below.
	_ "k8s.io/kubernetes/pkg/kubelet/volumemanager/populator"
	_ "k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler"
	volumeutil "k8s.io/kubernetes/pkg/volume/util"
)

// promptVolumes is upstream's volume manager without its polling. Upstream
// mounts a pod's volumes in three loops: one notices the pod every 100 ms, one
// attaches and then mounts every 100 ms, and the pod's start checks every 300 ms
// whether that is done. Almost every pod has a volume for its token, and so waits
// 300 ms for mounts that take 5 ms. Here the pod's own goroutine runs the steps
// of the first two loops. These steps may be called at any time by any
// goroutine: their state is locked, and an operation in progress is not started
// twice.
//
// Upstream has no interface for this, so promptVolumes uses reflection and
// go:linkname. The linker checks the names, and installPromptVolumes the fields. If
// a field is missing, the kubelet is only slower.
type promptVolumes struct {
	volumemanager.VolumeManager
	populator, reconciler unsafe.Pointer

	one sync.Mutex // held by whoever runs a step; the others wait for its effect
}

const (
	// promptPause is the time between two steps of repeat.
	promptPause = 3 * time.Millisecond
	// promptMost is the time after which repeat leaves the rest to upstream's loops. Their
	// period of 100 ms does not matter for mounts that take so long.
	promptMost = time.Second
)

//go:linkname processPodVolumes k8s.io/kubernetes/pkg/kubelet/volumemanager/populator.(*desiredStateOfWorldPopulator).processPodVolumes
func processPodVolumes(populator unsafe.Pointer, ctx context.Context, pod *v1.Pod)

//go:linkname findAndRemoveDeletedPods k8s.io/kubernetes/pkg/kubelet/volumemanager/populator.(*desiredStateOfWorldPopulator).findAndRemoveDeletedPods
func findAndRemoveDeletedPods(populator unsafe.Pointer, logger klog.Logger)

//go:linkname readyToUnmount k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler.(*reconciler).readyToUnmount
func readyToUnmount(reconciler unsafe.Pointer) bool

//go:linkname unmountVolumes k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler.(*reconciler).unmountVolumes
func unmountVolumes(reconciler unsafe.Pointer, logger klog.Logger)

//go:linkname mountOrAttachVolumes k8s.io/kubernetes/pkg/kubelet/volumemanager/reconciler.(*reconciler).mountOrAttachVolumes
func mountOrAttachVolumes(reconciler unsafe.Pointer, logger klog.Logger)

// installPromptVolumes puts promptVolumes into a kubelet that is being made.
func installPromptVolumes(k *kubelet.Kubelet) error {
	field, err := hidden(reflect.ValueOf(k).Elem(), "volumeManager")
	if err != nil {
		return err
	}
	manager, ok := field.Interface().(volumemanager.VolumeManager)
	if !ok {
		return errors.New("the kubelet has no volume manager yet")
	}
	prompt, err := newPromptVolumes(manager)
	if err != nil {
		return err
	}
	field.Set(reflect.ValueOf(prompt))
	return nil
}

func newPromptVolumes(manager volumemanager.VolumeManager) (*promptVolumes, error) {
	p := &promptVolumes{VolumeManager: manager}
	inside := reflect.Indirect(reflect.ValueOf(manager))
	for _, part := range []struct {
		field, kind string
		at          *unsafe.Pointer
	}{
		{"desiredStateOfWorldPopulator", "*populator.desiredStateOfWorldPopulator", &p.populator},
		{"reconciler", "*reconciler.reconciler", &p.reconciler},
	} {
		v, err := hidden(inside, part.field)
		if err != nil {
			return nil, err
		}
		if v = v.Elem(); !v.IsValid() || v.Type().String() != part.kind {
			return nil, fmt.Errorf("the volume manager's %s is no %s", part.field, part.kind)
		}
		*part.at = v.UnsafePointer()
	}
	return p, nil
}

// hidden returns an unexported field of interface type in a form that can be read and set.
// It returns an error if there is no such field.
func hidden(structure reflect.Value, name string) (reflect.Value, error) {
	if structure.Kind() != reflect.Struct {
		return reflect.Value{}, fmt.Errorf("no struct to look for %s in", name)
	}
	field := structure.FieldByName(name)
	if !field.IsValid() || field.Kind() != reflect.Interface || !field.CanAddr() {
		return reflect.Value{}, fmt.Errorf("%s has no interface %s", structure.Type(), name)
	}
	return reflect.NewAt(field.Type(), unsafe.Pointer(field.UnsafeAddr())).Elem(), nil
}

// WaitForAttachAndMount mounts the pod's volumes, and returns upstream's result.
func (p *promptVolumes) WaitForAttachAndMount(ctx context.Context, pod *v1.Pod) error {
	if p.ReconcilerStatesHasBeenSynced() { // otherwise upstream still searches for old mounts
		p.mount(ctx, pod)
	}
	return p.VolumeManager.WaitForAttachAndMount(ctx, pod)
}

func (p *promptVolumes) mount(ctx context.Context, pod *v1.Pod) {
	mounts, devices, _ := volumeutil.GetPodVolumeNames(pod, false)
	wanted := mounts.Union(devices)
	name := volumeutil.GetUniquePodName(pod)
	done := func() bool {
		mounted := p.GetMountedVolumesForPod(name)
		for volume := range wanted {
			if _, ok := mounted[volume]; !ok {
				return false
			}
		}
		return true
	}
	if done() {
		return
	}
	processPodVolumes(p.populator, ctx, pod)
	p.repeat(ctx, done, func(logger klog.Logger) { mountOrAttachVolumes(p.reconciler, logger) })
}

// WaitForUnmount unmounts the volumes of a pod that has ended, and returns upstream's
// result. A deleted pod disappears from the API only after that.
func (p *promptVolumes) WaitForUnmount(ctx context.Context, pod *v1.Pod) error {
	name := volumeutil.GetUniquePodName(pod)
	if done := func() bool { return !p.HasPossiblyMountedVolumesForPod(name) }; !done() && readyToUnmount(p.reconciler) {
		p.repeat(ctx, done, func(logger klog.Logger) {
			findAndRemoveDeletedPods(p.populator, logger)
			unmountVolumes(p.reconciler, logger)
		})
	}
	return p.VolumeManager.WaitForUnmount(ctx, pod)
}

// repeat runs step every promptPause until done returns true, for promptMost at most.
func (p *promptVolumes) repeat(ctx context.Context, done func() bool, step func(klog.Logger)) {
	timeout := time.NewTimer(promptMost)
	defer timeout.Stop()
	for {
		// If many pods start together, one goroutine runs the step for all.
		if p.one.TryLock() {
			step(klog.FromContext(ctx))
			p.one.Unlock()
		}
		select {
		case <-time.After(promptPause):
		case <-timeout.C:
			return
		case <-ctx.Done():
			return
		}
		if done() {
			return
		}
	}
}
