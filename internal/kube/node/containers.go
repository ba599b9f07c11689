package node

import (
	"context"
	"fmt"
	"path/filepath"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/cm"

	"berth.dev/berth/internal/base/cluster"
)

// newContainerManager makes upstream's container manager the way the kubelet
// itself would. It is made here so that it can be wrapped, and for its checkpoints.
func newContainerManager(ctx context.Context, plan cluster.Plan, s *options.KubeletServer, d *kubelet.Dependencies) (cm.ContainerManager, error) {
	config, err := containerManagerConfig(plan, s)
	if err != nil {
		return nil, err
	}
	real, err := cm.NewContainerManager(ctx, d.Mounter, d.CAdvisorInterface, config, s.FailSwapOn, d.Recorder, d.KubeClient)
	if err != nil {
		return nil, fmt.Errorf("make the container manager: %w", err)
	}
	if s.CgroupsPerQOS {
		return real, nil
	}
	return &containerManager{real}, nil
}

// containerManagerConfig returns what the kubelet would derive from its configuration,
// except for KubeletRootDir, where the managers keep checkpoints: it is in memory. On a full
// disk the kubelet could not end any pod, because it first writes the checkpoint of dynamic
// resources, even for a pod without claims (v1.36.3, SyncTerminatingPod). The feature gate
// is locked.
func containerManagerConfig(plan cluster.Plan, s *options.KubeletServer) (cm.NodeConfig, error) {
	reserved := v1.ResourceList{}
	for name, text := range s.SystemReserved {
		q, err := resource.ParseQuantity(text)
		if err != nil {
			return cm.NodeConfig{}, fmt.Errorf("parse reserved %s %q: %w", name, text, err)
		}
		reserved[v1.ResourceName(name)] = q
	}
	return cm.NodeConfig{
		NodeName:       types.NodeName(s.HostnameOverride),
		CgroupsPerQOS:  s.CgroupsPerQOS,
		CgroupRoot:     s.CgroupRoot,
		CgroupDriver:   s.CgroupDriver,
		KubeletRootDir: filepath.Join(plan.Paths.Run, "kubelet-state"),
		NodeAllocatableConfig: cm.NodeAllocatableConfig{
			EnforceNodeAllocatable: sets.New(s.EnforceNodeAllocatable...),
			SystemReserved:         reserved,
		},
		CPUManagerPolicy:          s.CPUManagerPolicy,
		CPUManagerReconcilePeriod: s.CPUManagerReconcilePeriod.Duration,
		MemoryManagerPolicy:       s.MemoryManagerPolicy,
		MemoryReservationPolicy:   s.MemoryReservationPolicy,
		PodPidsLimit:              s.PodPidsLimit,
		EnforceCPULimits:          s.CPUCFSQuota,
		CPUCFSQuotaPeriod:         s.CPUCFSQuotaPeriod.Duration,
		TopologyManagerPolicy:     s.TopologyManagerPolicy,
		TopologyManagerScope:      s.TopologyManagerScope,
	}, nil
}

// containerManager is upstream's container manager for pods without cgroups.
type containerManager struct{ cm.ContainerManager }

// NewPodContainerManager returns what stands in for the cgroups of pods.
func (m *containerManager) NewPodContainerManager() cm.PodContainerManager {
	return &podContainers{m.ContainerManager.NewPodContainerManager()}
}

// podContainers returns a configuration for pods that have no cgroup. Upstream
// returns nil, which an in-place resize dereferences. So any user who may resize a
// pod could crash the kubelet (v1.36.3, doPodResizeAction).
type podContainers struct{ cm.PodContainerManager }

// GetPodCgroupConfig reports that the pod's cgroup already matches the pod. The
// resize then skips the pod level and goes on to the containers: the runtime
// receives their new limits, and the shim enforces the memory limit.
func (*podContainers) GetPodCgroupConfig(pod *v1.Pod, _ v1.ResourceName) (*cm.ResourceConfig, error) {
	config := cm.ResourceConfigForPod(pod, false, 100_000, false, "")
	if config == nil {
		config = &cm.ResourceConfig{}
	}
	// The caller dereferences all of these.
	setDefault(&config.Memory, -1)
	setDefault(&config.CPUQuota, -1)
	setDefault(&config.CPUShares, 2)
	setDefault(&config.CPUPeriod, 100_000)
	return config, nil
}

// SetPodCgroupConfig does nothing.
func (*podContainers) SetPodCgroupConfig(klog.Logger, *v1.Pod, *cm.ResourceConfig) error { return nil }

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
