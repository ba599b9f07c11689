package bundle

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// cgroupMount is the mount point of a container's cgroup.
const cgroupMount = "/sys/fs/cgroup"

// cover adds mounts over files of /proc and /sys. One over the cgroup replaces
// that; a container that mounts none gets none. What a volume of the pod covers
// stays as the pod wants it.
func cover(spec *specs.Spec, mounts []specs.Mount) {
	for _, m := range mounts {
		if ofVolume(spec.Mounts, m.Destination) {
			continue
		}
		if m.Destination != cgroupMount {
			spec.Mounts = append(spec.Mounts, m)
			continue
		}
		for i, other := range spec.Mounts {
			if other.Destination == cgroupMount && (other.Type == "cgroup" || other.Type == "cgroup2") {
				spec.Mounts[i] = m
			}
		}
	}
}

// ofVolume reports whether path is in a bind mount, or one is below it.
func ofVolume(mounts []specs.Mount, path string) bool {
	return slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return m.Type == "bind" && (strings.HasPrefix(path+"/", m.Destination+"/") || strings.HasPrefix(m.Destination, path+"/"))
	})
}
