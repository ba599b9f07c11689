package launch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/access/persistent"
	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/launch/imagecache"
	"berth.dev/berth/internal/launch/members"
)

// The steps in this file start a node, on the head and on every other host. The steps
// of only the head are in run.go.

// ErrIsUp means that a persistent cluster exists already.
var ErrIsUp = errors.New("a cluster is up already")

// inspectHost finds what this host offers, and refuses early what cannot work.
func (n *node) inspectHost(ctx context.Context) (err error) {
	if err := raiseLimits(); err != nil {
		return err
	}
	if shared := n.Spec.SharedVolumes; shared != "" && !rundir.Writable(shared) {
		return exitcode.Wrap(exitcode.NoInput, fmt.Errorf("use %s for shared volumes: it is not a folder on this node that you may write to", shared))
	}
	if err := n.members.UseInterface(n.Spec.Network.Interface); err != nil {
		return exitcode.Wrap(exitcode.Config, err)
	}
	if err := checkMounts(n.Spec); err != nil {
		return err
	}
	if n.Spec.NamesImageCache() {
		if err := imagecache.MakeFolder(n.Spec.ImageCache); err != nil {
			return err
		}
	}
	roles, watchers := uint64(probe.HeadMemory), probe.HeadWatchers
	switch {
	case !n.members.Controls(n.Spec):
		roles, watchers = workerMemory, workerWatchers
	case n.Spec.HighlyAvailable:
		roles = replicaMemory
	}
	if err := checkWatchers(watchers); err != nil {
		return err
	}
	if n.host, err = inspect(ctx, n.Spec, n.Getenv, n.allocation, roles); err != nil {
		return err
	}
	n.host.name = n.members.Name()
	if err := n.host.chooseImages(ctx, n.Options, n.members.Leads()); err != nil {
		return err
	}
	if err := n.findDevices(); err != nil {
		return err
	}
	if warning := n.allocation.Warnings(n.host.cpus.Count, n.host.memory.Bytes); warning != "" {
		n.Log.Warn(warning)
	}
	if n.host.ids.OneUID {
		n.Log.Warn("pods run with one user id only: " + n.host.ids.Reason + "; runAsUser and file ownership in images are not honoured")
	}
	if capacity := n.host.podCapacity; capacity.Pods < probe.MaxPods {
		n.Log.Warn(fmt.Sprintf("this node offers %d pods instead of %d: %s; an administrator allows more: %s", capacity.Pods, probe.MaxPods, capacity.Limit, capacity.Remedy.Admin))
	}
	if n.host.state.Kind == probe.KindMemory {
		n.Log.Warn(fmt.Sprintf("the run's files are in memory (%s), which counts as the job's: a quarter of it is kept for them; --state-dir DIR names a local disk", n.host.state.Path))
	}
	// Not earlier: only the first node reports what is wrong with the host.
	if further := n.Spec.NodesPerHost - 1; n.localConfig.Index == 0 && further > 0 {
		n.localMembers, err = members.StartLocal(n.localConfig, further)
	}
	return err
}

func (n *node) makeDirectories(context.Context) error {
	memory := rundir.Memory(n.Getenv)
	if memory == "" {
		return exitcode.Wrap(exitcode.Unavailable, errors.New("find a place in memory for the kubeconfig: neither XDG_RUNTIME_DIR nor /dev/shm can be written"))
	}
	if err := n.host.removeStale(n.host.state.Path, memory); err != nil {
		n.Log.Warn("leftovers of an earlier run stay: " + err.Error())
	}
	n.dirs.debug = debugDir(n.Spec.DebugDir)
	if err := n.dirs.create(n.host.state.Path, memory, n.host.runID); err != nil {
		return exitcode.Wrap(exitcode.NoSpace, err)
	}
	if !n.members.Leads() {
		if err := n.dirs.noteHead(n.members.First()); err != nil {
			return err
		}
	}
	// The first node of a host marks the cluster for all nodes of the host.
	if n.Spec.Stay && n.localConfig.Index == 0 {
		if err := persistent.Mark(n.dirs.private.Path); err != nil {
			return exitcode.Wrap(exitcode.NoSpace, err)
		}
		if _, ok := persistent.Before(rundir.MemoryPlaces(n.Getenv), jobOf(n.Getenv), n.dirs.private.Path); ok {
			return exitcode.Wrap(exitcode.Config, fmt.Errorf("%w in job %s; 'berth down' ends it", ErrIsUp, jobOf(n.Getenv)))
		}
	}
	return exitcode.Wrap(exitcode.NoSpace, n.dirs.fill())
}

// offer returns this node's offer to the cluster. It opens the listener of the API
// server if this node has one, and makes the cgroup.
func (n *node) offer() (cluster.Offer, error) {
	var port uint16
	if n.members.Controls(n.Spec) {
		var err error
		if n.apiListener, port, err = loopbackListener(); err != nil {
			return cluster.Offer{}, err
		}
	}
	offer, err := n.host.offer(n.dirs.scratch.Path, port, n.labels)
	if err != nil {
		return cluster.Offer{}, err
	}
	n.cgroup, err = makeCgroup(n.host.runID, n.dirs.scratch.Path, n.Log)
	offer.CgroupsDelegated, offer.FastPath = n.cgroup != nil, hasSwitch(n.members, n.Spec, n.Log)
	return offer, err
}

// recordControlNodes notes the other machines with a control plane for users that
// come from the login host.
func (n *node) recordControlNodes() error {
	if n.allocation == nil {
		return nil
	}
	var hosts []string
	for _, member := range n.plan.Replicas() {
		if slices.Contains(n.allocation.Job.Nodes, member.Host) {
			hosts = append(hosts, member.Host)
		}
	}
	return n.dirs.write(rundir.ControlNodesFile, []byte(strings.Join(hosts, "\n")), "write the names of the control planes' nodes")
}

// dropPlan removes the user's key, and the run's cgroup if the janitor was killed
// before it could.
func (n *node) dropPlan() error {
	if n.identities.Key != nil {
		n.identities.Key.Close()
	}
	if n.cgroup == nil {
		return nil
	}
	return n.cgroup.Close()
}
