package bundle

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// cgroupMount is the mount point of a container's cgroup.
const cgroupMount = "/sys/fs/cgroup"

// cover adds mounts over files of /proc and /sys. A mount over the cgroup replaces the
// container's own mount of it; a container that mounts no cgroup gets none. Paths in a bind
// mount of the pod, or above one, stay unchanged.
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

// ofVolume reports whether path is in a bind mount, or above one.
func ofVolume(mounts []specs.Mount, path string) bool {
	return slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return m.Type == "bind" && (strings.HasPrefix(path+"/", m.Destination+"/") || strings.HasPrefix(m.Destination, path+"/"))
	})
}
