package launch

import (
	"fmt"
	"os"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
)

// checkMounts returns an error if this node does not have a folder that pods may mount.
func checkMounts(spec cluster.Spec) error {
	for _, value := range spec.Mounts {
		mount, err := cluster.ParseMount(value)
		if err != nil {
			return exitcode.Wrap(exitcode.Usage, err)
		}
		if _, err := os.Stat(mount.Source); err != nil {
			return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("mount %s into pods: %w", mount.Source, err))
		}
	}
	return nil
}
