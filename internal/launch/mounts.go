package launch

import (
	"fmt"
	"os"

	"berth.dev/berth/internal/base/cluster"
)

// checkMounts refuses folders for pods that this node does not have.
func checkMounts(spec cluster.Spec) error {
	for _, value := range spec.Mounts {
		mount, err := cluster.ParseMount(value)
		if err != nil {
			return fail(ExitUsage, err)
		}
		if _, err := os.Stat(mount.Source); err != nil {
			return fail(ExitNoInput, fmt.Errorf("mount %s into pods: %w", mount.Source, err))
		}
	}
	return nil
}
