package procstats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	cadvisorv1 "github.com/google/cadvisor/info/v1"
	cadvisorv2 "github.com/google/cadvisor/info/v2"
	"golang.org/x/sys/unix"
)

// Config configures the measurements and reports of an Advisor.
type Config struct {
	// CPUs and MemoryBytes are the node's capacity: its share of the host.
	CPUs        int
	MemoryBytes uint64
	// MachineID identifies the node within the cluster.
	MachineID string
	// Kubelet is the kubelet's root directory. Images is a directory on the file system of
	// the images and of the containers' own layers.
	Kubelet, Images string
	// Bundles is the directory of the shims' bundles in the kubelet's
	// containerd namespace.
	Bundles string
}

// BundleDir returns the directory of the kubelet's container bundles for
// containerd's state directory.
func BundleDir(state string) string {
	return filepath.Join(state, "io.containerd.runtime.v2.task", "k8s.io")
}

// Advisor provides statistics to the kubelet. It implements cadvisor.Interface.
type Advisor struct {
	config  Config
	machine cadvisorv1.MachineInfo
	version cadvisorv1.VersionInfo
	started time.Time
	meter   *meter
}

// New returns an Advisor for the processes that /proc shows.
func New(config Config) *Advisor {
	now := time.Now()
	return &Advisor{
		config:  config,
		started: now,
		machine: cadvisorv1.MachineInfo{
			Timestamp: now, NumCores: config.CPUs, NumPhysicalCores: config.CPUs, NumSockets: 1,
			MemoryCapacity: config.MemoryBytes, MachineID: config.MachineID, SystemUUID: config.MachineID,
			BootID: readLine("/proc/sys/kernel/random/boot_id"),
		},
		version: cadvisorv1.VersionInfo{KernelVersion: kernelRelease(), ContainerOsVersion: systemName("/etc/os-release")},
		meter: &meter{
			procs: newTable("/proc"), bundles: newBundles(config.Bundles),
			ownNS: ownPIDNamespace, now: time.Now, every: time.Second,
			tmpfs:    func() (uint64, map[string]uint64) { return tmpfsUsage(config.Kubelet) },
			counters: map[string]*counter{},
		},
	}
}

// Start does nothing: measuring begins with the first question.
func (a *Advisor) Start() error { return nil }

// MachineInfo describes the node.
func (a *Advisor) MachineInfo() (*cadvisorv1.MachineInfo, error) {
	info := a.machine
	return &info, nil
}

// VersionInfo names the kernel and the operating system.
func (a *Advisor) VersionInfo() (*cadvisorv1.VersionInfo, error) {
	v := a.version
	return &v, nil
}

// ImagesFsInfo describes the file system that holds images.
func (a *Advisor) ImagesFsInfo(context.Context) (cadvisorv2.FsInfo, error) {
	return fileSystem(a.config.Images)
}

// ContainerFsInfo describes the file system that holds containers' own layers.
func (a *Advisor) ContainerFsInfo(context.Context) (cadvisorv2.FsInfo, error) {
	return fileSystem(a.config.Images)
}

// RootFsInfo describes the file system that holds volumes and logs.
func (a *Advisor) RootFsInfo() (cadvisorv2.FsInfo, error) { return fileSystem(a.config.Kubelet) }

// GetDirFsInfo describes the file system that holds path.
func (a *Advisor) GetDirFsInfo(path string) (cadvisorv2.FsInfo, error) { return fileSystem(path) }

// GetRequestedContainersInfo returns nothing, so that the endpoint /metrics/cadvisor is
// empty: its series describe cgroups.
func (a *Advisor) GetRequestedContainersInfo(string, cadvisorv2.RequestOptions) (map[string]*cadvisorv1.ContainerInfo, error) {
	return map[string]*cadvisorv1.ContainerInfo{}, nil
}

// podsRoot is the name under which pods appear, as if they had cgroups.
const podsRoot = "/kubepods"

// ContainerInfoV2 returns the statistics of name. For "/" with opts.Recursive, it returns
// the statistics of the node and of all pods and containers. Any other name outside of
// podsRoot stands for the node: the kubelet requests statistics by cgroup, and all
// cgroups are the same one. It returns an error for an unknown pod or container.
func (a *Advisor) ContainerInfoV2(name string, opts cadvisorv2.RequestOptions) (map[string]cadvisorv2.ContainerInfo, error) {
	s, err := a.meter.snapshot()
	if err != nil {
		return nil, fmt.Errorf("measure containers: %w", err)
	}
	if name == "/" && opts.Recursive {
		return a.everything(s), nil
	}
	if name == "/" || !strings.HasPrefix(name, podsRoot) {
		return map[string]cadvisorv2.ContainerInfo{name: a.node(s)}, nil
	}
	all := a.everything(s)
	info, ok := all[name]
	if !ok && name == podsRoot {
		var sum usage
		for _, u := range s.pods() {
			sum.add(u)
		}
		info, ok = describe(s, sum, a.started), true
	}
	if !ok {
		return nil, fmt.Errorf("measure %s: no such pod or container", name)
	}
	return map[string]cadvisorv2.ContainerInfo{name: info}, nil
}

func (a *Advisor) node(s *snapshot) cadvisorv2.ContainerInfo {
	info := describe(s, s.node, a.started)
	info.Spec.Memory.Limit = a.config.MemoryBytes
	return info
}

func (a *Advisor) everything(s *snapshot) map[string]cadvisorv2.ContainerInfo {
	all := map[string]cadvisorv2.ContainerInfo{"/": a.node(s)}
	created := map[string]time.Time{}
	for _, c := range s.sorted() {
		info := describe(s, s.containers[c], c.created)
		info.Spec.Labels = map[string]string{
			"io.kubernetes.pod.name": c.pod, "io.kubernetes.pod.namespace": c.namespace,
			"io.kubernetes.pod.uid": c.uid, "io.kubernetes.container.name": c.name,
		}
		if c.sandbox() {
			if net := network(c.pid); net != nil {
				info.Spec.HasNetwork, info.Stats[0].Network = true, net
			}
		}
		all[podsRoot+"/pod"+c.uid+"/"+c.id] = info
		if _, ok := created[c.uid]; !ok {
			created[c.uid] = c.created
		}
	}
	for uid, u := range s.pods() {
		all[podsRoot+"/pod"+uid] = describe(s, u, created[uid])
	}
	return all
}

// unlimited is cAdvisor's value for no limit.
const unlimited = 1 << 63

func describe(s *snapshot, u usage, created time.Time) cadvisorv2.ContainerInfo {
	// The kernel updates its counts in batches, so a small process may seem to use no
	// memory. The kubelet considers such a container ended.
	anonymous := max(u.anonymous, u.processes*4096)
	return cadvisorv2.ContainerInfo{
		Spec: cadvisorv2.ContainerSpec{
			CreationTime: created, HasCpu: true, HasMemory: true, HasProcesses: true,
			Memory: cadvisorv2.MemorySpec{Limit: unlimited, SwapLimit: unlimited},
		},
		Stats: []*cadvisorv2.ContainerStats{{
			Timestamp: s.at,
			Cpu:       &cadvisorv1.CpuStats{Usage: cadvisorv1.CpuUsage{Total: uint64(u.cpu)}},
			CpuInst:   &cadvisorv2.CpuInstStats{Usage: cadvisorv2.CpuInstUsage{Total: uint64(u.rate * 1e9)}},
			Memory:    &cadvisorv1.MemoryStats{Usage: max(u.working, anonymous), WorkingSet: max(u.working, anonymous), RSS: anonymous},
			Processes: &cadvisorv1.ProcessStats{ProcessCount: u.processes},
		}},
	}
}

func fileSystem(dir string) (cadvisorv2.FsInfo, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return cadvisorv2.FsInfo{}, fmt.Errorf("measure the file system of %s: %w", dir, err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return cadvisorv2.FsInfo{}, fmt.Errorf("measure the file system of %s: %w", dir, err)
	}
	size, inodes, free := uint64(fs.Bsize), fs.Files, fs.Ffree
	return cadvisorv2.FsInfo{
		Timestamp: time.Now(),
		// The kubelet compares devices to see whether images have a separate file
		// system.
		Device:     fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev)),
		Mountpoint: dir,
		Capacity:   fs.Blocks * size, Available: fs.Bavail * size, Usage: (fs.Blocks - fs.Bfree) * size,
		Inodes: &inodes, InodesFree: &free,
	}, nil
}

func ownPIDNamespace() string {
	ns, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	return ns
}

func readLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// systemName returns the PRETTY_NAME of an os-release(5) file, or "Linux".
func systemName(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return "Linux"
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"'`)
		}
	}
	return "Linux"
}
