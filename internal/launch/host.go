package launch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/vishvananda/netlink"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/base/programs"
	"berth.dev/berth/internal/base/rundir"
	"berth.dev/berth/internal/launch/allocation"
	"berth.dev/berth/internal/launch/pulls"
	"berth.dev/berth/internal/node/devices"
	"berth.dev/berth/internal/node/sandbox"
)

// Paths inside the sandbox.
const (
	runPath     = "/run/berth"
	kubeletPath = "/var/lib/kubelet"
	cgroupPath  = "/sys/fs/cgroup"
)

// The memory that the roles of a node need, in bytes; see the measurements in
// bench/results. It is not available to pods. probe.HeadMemory is that of a head.
const (
	workerMemory = 320 << 20
	// replicaMemory is the memory of a node with one of several control planes.
	// Its controllers are a separate process.
	replicaMemory = 704 << 20
)

// memoryFilesShare is the divisor for the part of the job's memory that is
// reserved for images and files of containers if they are in memory.
const memoryFilesShare = 4

// host describes the machine and the allocation of this run.
type host struct {
	name string
	ids  probe.IDMap
	cpus probe.CPUs
	// cpuSet lists the CPUs of this node. It is empty if they are unknown.
	cpuSet string
	memory probe.Memory
	// state is the chosen parent directory of the run's files.
	state probe.Candidate
	// ipv6 is the reach of IPv6 packets from here.
	ipv6    cluster.Reach
	libexec string
	// self is the path of this program.
	self string
	// refusedIPv6 is the reason why nftables accepts no IPv6 rules here. It is
	// empty unless such rules are needed.
	refusedIPv6 string
	runID       string
	// podCapacity holds the number of pods that the kernel allows this user here.
	podCapacity probe.PodCapacity
	// roles is the memory that berth itself needs here, in bytes.
	roles uint64
	// snapshotter selects how containers get their root file systems here.
	snapshotter string
	// imageCache is the folder of the image cache. It is empty without one.
	imageCache string
	// devices holds the devices that pods can request here.
	devices devices.Found
}

// inspect collects what the machine offers to the cluster. It returns an error if no
// node can work here, before anything starts.
func inspect(ctx context.Context, spec cluster.Spec, getenv func(string) string, job *allocation.Allocation, roles uint64) (host, error) {
	machine := probe.Local()
	h := host{
		roles:       roles,
		ids:         machine.IDMap(os.Getuid(), os.Getgid()),
		cpus:        machine.CPUs(),
		memory:      machine.Memory(),
		podCapacity: machine.PodCapacity(spec.NodesPerHost),
	}
	if h.podCapacity.Pods == 0 {
		return host{}, exitcode.Wrap(exitcode.Unavailable, fmt.Errorf("start pods here: no room for one: %s; %s", h.podCapacity.Limit, h.podCapacity.Remedy.Admin))
	}
	if h.ids.NameService && !spec.OneUID {
		h.ids = machine.AskNameService(ctx, h.ids, os.Getuid(), os.Getgid())
	}
	if spec.OneUID {
		h.ids.OneUID, h.ids.Reason = true, "asked for with --one-uid"
	}
	h.memory = job.Memory(ctx, h.memory)
	h.cpuSet = job.CPUSet(ctx, h.cpus, spec.NodesPerHost)
	if n := spec.NodesPerHost; n > 1 {
		h.cpus.Count = max(1, h.cpus.Count/n)
		h.memory.Bytes /= uint64(n)
	}
	if !h.memory.Holds(roles) {
		return host{}, exitcode.Wrap(exitcode.Config, fmt.Errorf("a node has %s of memory here (%s), a node needs at least %s: ask Slurm for more with --mem",
			probe.Bytes(h.memory.Bytes), h.memory.Source, probe.Bytes(roles+probe.SmallPod)))
	}
	if spec.Network.IPFamily != cluster.IPv4Only {
		h.ipv6 = reach(machine.IPv6())
	}
	var err error
	if h.self, err = programs.Self(); err == nil {
		h.libexec, err = findLibexec()
	}
	if err != nil {
		return host{}, exitcode.Wrap(exitcode.Unavailable, err)
	}
	places, err := statePlaces(machine, spec.StateDir)
	if err != nil {
		return host{}, err
	}
	// Remove these first, since they would count against the space. If something
	// stays, makeDirectories reports it when a directory has been chosen.
	_ = h.removeStale(places...)
	if h.state, err = stateDir(machine, places); err != nil {
		return host{}, err
	}
	if h.ipv6 == cluster.ToOutside || h.ipv6 == cluster.ToNodes && spec.Network.IPFamily == cluster.DualStack {
		h.refusedIPv6 = probe.RefusedIPv6(ctx, filepath.Join(h.libexec, "nft"))
	}
	h.runID = runID(getenv)
	return h, nil
}

// runID returns the name of this run, from its job step under Slurm and from its
// process.
func runID(getenv func(string) string) string { return runsOfStep(getenv) + strconv.Itoa(os.Getpid()) }

// runsOfStep returns the prefix of the names of all runs of this job step.
func runsOfStep(getenv func(string) string) string {
	if job := getenv("SLURM_JOB_ID"); job != "" {
		return "job-" + job + "-" + getenv("SLURM_STEP_ID") + "-"
	}
	return "local-"
}

// statePlaces returns the candidate directories for the run's files.
func statePlaces(machine *probe.Host, wanted string) ([]string, error) {
	if wanted == "" {
		return machine.StateDirs(), nil
	}
	absolute, err := filepath.Abs(wanted)
	return []string{absolute}, err
}

func stateDir(machine *probe.Host, candidates []string) (probe.Candidate, error) {
	best, rejected := machine.StateDir(candidates)
	if best.Path != "" {
		return best, nil
	}
	problems := []error{errors.New("no directory on this node can hold the run's files; name one with --state-dir DIR")}
	for _, candidate := range rejected {
		problems = append(problems, fmt.Errorf("%s: %s", candidate.Path, candidate.Reason))
	}
	return probe.Candidate{}, exitcode.Wrap(exitcode.NoSpace, errors.Join(problems...))
}

// sandboxProgram is the name of the program of the janitor, init and other processes that
// wait most of the time.
const sandboxProgram = "berth-sandbox"

// SandboxProgram returns the path of berth-sandbox.
func SandboxProgram() (string, error) {
	libexec, err := programs.Dir()
	if err != nil {
		return "", err
	}
	return filepath.Join(libexec, sandboxProgram), nil
}

// findLibexec returns the directory of the programs that come with berth, which
// is beside bin.
func findLibexec() (string, error) {
	libexec, err := programs.Dir()
	if err != nil {
		return "", err
	}
	return libexec, checkLibexec(libexec)
}

func checkLibexec(libexec string) error {
	for _, program := range []string{"berth-kube", sandboxProgram} {
		if _, err := os.Stat(filepath.Join(libexec, program)); err != nil {
			return fmt.Errorf("find the programs that come with berth: %w; unpack the whole archive, bin/ and libexec/ side by side", err)
		}
	}
	return nil
}

// reach converts the results of probe.Host.IPv6: whether the kernel has IPv6, and the
// source address of packets to the outside, if there is a route.
func reach(kernel bool, source netip.Addr) cluster.Reach {
	switch {
	case !kernel:
		return cluster.Nowhere
	case !source.IsValid():
		return cluster.ToNodes
	}
	return cluster.ToOutside
}

// usedPrefixes returns the destinations of this host's routes.
func usedPrefixes(ipv6 cluster.Reach) ([]netip.Prefix, error) {
	family := netlink.FAMILY_V4
	if ipv6 != cluster.Nowhere {
		family = netlink.FAMILY_ALL
	}
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	var used []netip.Prefix
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		address, ok := netip.AddrFromSlice(route.Dst.IP)
		bits, _ := route.Dst.Mask.Size()
		if ok {
			used = append(used, netip.PrefixFrom(address.Unmap(), bits))
		}
	}
	return used, nil
}

// offer returns this node's offer to the cluster.
func (h host) offer(scratch string, hostAPIPort uint16, labels map[string]string) (cluster.Offer, error) {
	used, err := usedPrefixes(h.ipv6)
	if err != nil {
		return cluster.Offer{}, err
	}
	return cluster.Offer{
		Host:  h.name,
		RunID: h.runID,
		Node: cluster.Node{
			Labels:              labels,
			CPUs:                h.cpus.Count,
			CPUSet:              h.cpuSet,
			MemoryBytes:         h.memory.Bytes,
			ReservedMemoryBytes: h.reserved(),
			MaxPods:             h.podCapacity.Pods,
			Resources:           h.devices.Resources,
		},
		Paths: cluster.Paths{
			Libexec: h.libexec, Run: runPath, Scratch: scratch,
			Kubelet: kubeletPath, Cgroup: cgroupPath,
		},
		Used:        used,
		IPv6:        h.ipv6,
		RefusedIPv6: h.refusedIPv6,
		OneUID:      h.ids.OneUID,
		SubIDs:      fmt.Sprint(h.ids.UIDs[1:], h.ids.GIDs[1:]),
		Snapshotter: h.snapshotter,
		ImageCache:  h.imageCache,
		HostAPIPort: hostAPIPort,
	}, nil
}

// reserved returns the memory that is not available to pods: the roles' memory
// and, if the run's files are in memory, a part for them.
func (h host) reserved() uint64 {
	if h.state.Kind != probe.KindMemory {
		return h.roles
	}
	return h.roles + h.memory.Bytes/memoryFilesShare
}

// podIDs describes the user and group ids available to pods here.
func (h host) podIDs() string {
	count := func(ranges []probe.IDRange) (all uint64) {
		for _, r := range ranges {
			all += uint64(r.Count)
		}
		return all
	}
	if ids := min(count(h.ids.UIDs), count(h.ids.GIDs)); ids > 1 && !h.ids.OneUID {
		return fmt.Sprintf("0 to %d", ids-1)
	}
	return "0"
}

// sandboxIDs converts the id maps for the sandbox.
func (h host) sandboxIDs() sandbox.IDMap {
	if h.ids.OneUID {
		return sandbox.IDMap{}
	}
	lines := func(ranges []probe.IDRange) []sandbox.IDRange {
		var all []sandbox.IDRange
		for _, r := range ranges {
			all = append(all, sandbox.IDRange(r))
		}
		return all
	}
	return sandbox.IDMap{
		UIDs: lines(h.ids.UIDs), GIDs: lines(h.ids.GIDs),
		NewUIDMap: h.ids.NewUIDMap, NewGIDMap: h.ids.NewGIDMap,
	}
}

// removeStale removes the files of earlier runs whose processes were all killed
// at once.
func (h host) removeStale(bases ...string) error {
	var stale []string
	for _, base := range bases {
		found, err := rundir.Stale(base)
		if err != nil {
			return err
		}
		stale = append(stale, found...)
	}
	if err := removeStaleCgroups(stale); err != nil {
		return err
	}
	return sandbox.Remove(filepath.Join(h.libexec, sandboxProgram), h.sandboxIDs(), stale)
}

// loopbackListener returns the API server's listener on the host's loopback, and
// its port. A socket stays in the network namespace that it was created in. So
// the API server, which inherits the socket, needs no relay.
func loopbackListener() (*os.File, uint16, error) {
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, 0, fmt.Errorf("listen for the API server on the host's loopback: %w", err)
	}
	defer listener.Close()
	file, err := listener.File()
	if err != nil {
		return nil, 0, fmt.Errorf("listen for the API server on the host's loopback: %w", err)
	}
	return file, uint16(listener.Addr().(*net.TCPAddr).Port), nil
}

// roleEnv returns the environment of a role. It contains nothing of the user's
// environment except extra.
func roleEnv(plan cluster.Plan, extra ...string) []string {
	env := []string{"PATH=" + plan.Paths.Libexec, "HOME=" + filepath.Join(plan.Paths.Run, pulls.RolesHome), "USER=root", "TMPDIR=" + filepath.Join(plan.Paths.Scratch, "tmp")}
	return append(env, extra...)
}
