package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/node/sandbox"
)

// groupFile holds, in the directory of a run, the path of its control group.
const groupFile = "cgroup"

// makeCgroup makes the run's control group where one was delegated. A run does
// without where that does not work, and says so.
func (r *run) makeCgroup() error {
	delegation := probe.Local().Cgroup()
	if !delegation.Delegated {
		return nil
	}
	group, err := sandbox.MakeCgroup(delegation.Path, r.host.runID)
	if err != nil {
		r.Log.Warn("limits of processors are not enforced, and those of memory by watching only: " + err.Error())
		return nil
	}
	r.cgroup = group
	// For whoever finds the directory after a crash of everything.
	if err := os.WriteFile(filepath.Join(r.scratch.Path, groupFile), []byte(group.Path+"\n"), 0o600); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("note the run's control group: %w", err))
	}
	return nil
}

// cgroupPath is the run's control group; empty where it has none.
func (r *run) cgroupPath() string {
	if r.cgroup == nil {
		return ""
	}
	return r.cgroup.Path
}

// removeCgroup completes what the janitor did, or does it where that was
// killed.
func (r *run) removeCgroup() error {
	if r.cgroup == nil {
		return nil
	}
	return r.cgroup.Close()
}

// removeStaleCgroups removes the control groups of runs that were killed all at
// once and left these directories.
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
