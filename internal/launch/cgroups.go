package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/node/sandbox"
)

// groupFile is a file in a run's directory that contains the path of its cgroup.
const groupFile = "cgroup"

// makeCgroup creates the run's cgroup below the one that Slurm delegated. It returns nil
// if there is none. It also returns nil, after a warning, if the cgroup cannot be created:
// the run continues without it.
func makeCgroup(runID, scratch string, log *slog.Logger) (*sandbox.Cgroup, error) {
	delegation := probe.Local().Cgroup()
	if !delegation.Delegated {
		return nil, nil
	}
	group, err := sandbox.MakeCgroup(delegation.Path, runID)
	if err != nil {
		log.Warn("CPU limits are not enforced, and memory limits only by watching: " + err.Error())
		return nil, nil
	}
	// Cleanup reads this file after a crash of everything.
	if err := os.WriteFile(filepath.Join(scratch, groupFile), []byte(group.Path+"\n"), 0o600); err != nil {
		return group, exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("record the run's control group: %w", err))
	}
	return group, nil
}

// removeStaleCgroups removes the cgroups of runs whose processes were all killed
// at once and left these directories.
func removeStaleCgroups(directories []string) error {
	var failures []error
	for _, directory := range directories {
		path, err := os.ReadFile(filepath.Join(directory, groupFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = sandbox.RemoveCgroup(strings.TrimSpace(string(path)))
		}
		failures = append(failures, err)
	}
	return errors.Join(failures...)
}
