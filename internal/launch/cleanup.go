package launch

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/node/sandbox"
)

// Cleanup removes what this user's killed runs left on this node, and returns the
// directories that it removed. Such a run leaves files only if all its processes
// were killed at once.
func Cleanup(ctx context.Context, getenv func(string) string) ([]string, error) {
	machine := probe.Local()
	h := host{ids: machine.IDMap(os.Getuid(), os.Getgid())}
	if h.ids.NameService {
		h.ids = machine.AskNameService(ctx, h.ids, os.Getuid(), os.Getgid())
	}
	bases := machine.StateDirs()
	if memory := rundir.Memory(getenv); memory != "" {
		bases = append(bases, memory)
	}
	slices.Sort(bases)
	bases = slices.Compact(bases) // /dev/shm can be in both lists
	awaitStep(ctx, getenv, bases)
	var stale []string
	for _, base := range bases {
		found, err := rundir.Stale(base)
		if err != nil {
			return nil, err
		}
		stale = append(stale, found...)
	}
	if err := removeStaleCgroups(stale); err != nil {
		return nil, err
	}
	program, err := SandboxProgram()
	if err != nil {
		return nil, err
	}
	if err := sandbox.Remove(program, h.sandboxIDs(), stale); err != nil {
		return nil, err
	}
	for _, base := range bases {
		for _, home := range rundir.Owned(base) {
			_ = os.Remove(home) // a directory in use stays
		}
	}
	return stale, nil
}

// epilogTimeout is less than Slurm's time for a task epilog (22.05: 5 s).
const epilogTimeout = 3 * time.Second

// awaitStep waits until the runs of this step have ended. Slurm kills the whole
// step at once but calls the epilog when the step's task has ended. Other killed
// processes may still hold their files then.
func awaitStep(ctx context.Context, getenv func(string) string, bases []string) {
	if getenv("SLURM_STEP_ID") == "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, epilogTimeout)
	defer cancel()
	for _, base := range bases {
		for _, path := range rundir.Live(base) {
			if strings.HasPrefix(filepath.Base(path), runsOfStep(getenv)) {
				awaitUnlocked(ctx, path)
			}
		}
	}
}
