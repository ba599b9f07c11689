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

// groupFile is a file in a run's directory that contains the path of its cgroup.
const groupFile = "cgroup"

// makeCgroup creates the run's cgroup if Slurm delegated one. If that fails, the
// run continues with a warning.
func (r *run) makeCgroup() error {
	delegation := probe.Local().Cgroup()
	if !delegation.Delegated {
		return nil
	}
	group, err := sandbox.MakeCgroup(delegation.Path, r.host.runID)
	if err != nil {
		r.Log.Warn("CPU limits are not enforced, and memory limits only by watching: " + err.Error())
		return nil
	}
	r.cgroup = group
	// Cleanup reads this file after a crash of everything.
	if err := os.WriteFile(filepath.Join(r.scratch.Path, groupFile), []byte(group.Path+"\n"), 0o600); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, fmt.Errorf("record the run's control group: %w", err))
	}
	return nil
}

// cgroupPath returns the path of the run's cgroup, or an empty string without
// one.
func (r *run) cgroupPath() string {
	if r.cgroup == nil {
		return ""
	}
	return r.cgroup.Path
}

// removeCgroup removes the run's cgroup if the janitor was killed before it
// could.
func (r *run) removeCgroup() error {
	if r.cgroup == nil {
		return nil
	}
	return r.cgroup.Close()
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
