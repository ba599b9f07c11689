package launch

import (
	"context"
	"os"
	"slices"

	"berth.dev/berth/internal/probe"
	"berth.dev/berth/internal/rundir"
	"berth.dev/berth/internal/sandbox"
)

// Cleanup removes what runs of this user left on this node that were killed
// all at once, and returns what it removed.
func Cleanup(ctx context.Context, getenv func(string) string) ([]string, error) {
	machine := probe.Local()
	h := host{ids: machine.IDMap(os.Getuid(), os.Getgid())}
	if h.ids.NameService {
		h.ids = machine.AskNameService(ctx, h.ids, os.Getuid(), os.Getgid())
	}
	bases := machine.StateDirs()
	if memory := memoryDir(getenv); memory != "" {
		bases = append(bases, memory)
	}
	slices.Sort(bases)
	bases = slices.Compact(bases) // /dev/shm can be both
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
	if err := sandbox.Remove(h.sandboxIDs(), stale); err != nil {
		return nil, err
	}
	for _, base := range bases {
		for _, home := range rundir.Homes(base) {
			_ = os.Remove(home) // one that is in use, or another user's, stays
		}
	}
	return stale, nil
}
