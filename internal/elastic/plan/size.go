package plan

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	helpers "k8s.io/component-helpers/resource"
)

// Size is an amount of resources of a node. Memory is in bytes. Pods is the number of pods.
type Size struct {
	MilliCPU int64 `json:"milliCPU"`
	Memory   int64 `json:"memory"`
	Pods     int64 `json:"pods,omitempty"`
	// Devices holds the number of devices by the name of the resource, such as nvidia.com/gpu.
	Devices map[corev1.ResourceName]int64 `json:"devices,omitempty"`
}

// SizeOf returns what the scheduler counts for a pod.
func SizeOf(pod *corev1.Pod) Size {
	size := sizeOf(helpers.PodRequests(pod, helpers.PodResourcesOptions{}))
	size.Pods = 1
	return size
}

// Room returns what the scheduler counts for an empty node.
func Room(node *corev1.Node) Size { return sizeOf(node.Status.Allocatable) }

// sizeOf converts a list of resources.
func sizeOf(list corev1.ResourceList) Size {
	var size Size
	for name, quantity := range list {
		switch name {
		case corev1.ResourceCPU:
			size.MilliCPU = quantity.MilliValue()
		case corev1.ResourceMemory:
			size.Memory = quantity.Value()
		case corev1.ResourcePods:
			size.Pods = quantity.Value()
		case corev1.ResourceEphemeralStorage, corev1.ResourceStorage:
			// No option of sbatch brings it, and berth's nodes do not offer it.
		default:
			if quantity.Sign() > 0 {
				size.Devices = with(size.Devices, name, quantity.Value())
			}
		}
	}
	return size
}

// with returns a copy of a map, with a larger count of one name.
func with(devices map[corev1.ResourceName]int64, name corev1.ResourceName, more int64) map[corev1.ResourceName]int64 {
	sum := maps.Clone(devices)
	if sum == nil {
		sum = map[corev1.ResourceName]int64{}
	}
	sum[name] += more
	return sum
}

// plus returns the sum of two sizes, and minus their difference, which may be negative.
func (s Size) plus(t Size) Size {
	s.MilliCPU, s.Memory, s.Pods = s.MilliCPU+t.MilliCPU, s.Memory+t.Memory, s.Pods+t.Pods
	for name, count := range t.Devices {
		s.Devices = with(s.Devices, name, count)
	}
	return s
}

func (s Size) minus(t Size) Size {
	s.MilliCPU, s.Memory, s.Pods = s.MilliCPU-t.MilliCPU, s.Memory-t.Memory, s.Pods-t.Pods
	for name, count := range t.Devices {
		s.Devices = with(s.Devices, name, -count)
	}
	return s
}

// max returns the larger amount of each resource.
func (s Size) max(t Size) Size {
	s.MilliCPU, s.Memory, s.Pods = max(s.MilliCPU, t.MilliCPU), max(s.Memory, t.Memory), max(s.Pods, t.Pods)
	for name, count := range t.Devices {
		if more := count - s.Devices[name]; more > 0 {
			s.Devices = with(s.Devices, name, more)
		}
	}
	return s
}

// Within reports whether a pod of this size fits a room.
func (s Size) Within(room Size) bool {
	for name, count := range s.Devices {
		if count > 0 && count > room.Devices[name] {
			return false
		}
	}
	// The scheduler ignores a resource that a pod does not request.
	return (s.MilliCPU == 0 || s.MilliCPU <= room.MilliCPU) && (s.Memory == 0 || s.Memory <= room.Memory) && s.Pods <= room.Pods
}
