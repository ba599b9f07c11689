// Package bundle adapts the OCI specification of a container to what an
// unprivileged node can honour, and keeps what runc must not see.
//
// It decides from facts that the caller passes, and writes no file but config.json.
// Package memory enforces the limits that it removes.
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// Node describes what the node can offer its containers.
type Node struct {
	// Controllers are the cgroup v2 controllers that were delegated to the
	// user. Nil means that no cgroup can be created at all.
	Controllers []string
	// OneUID is true if only one uid and one gid are mapped on the node.
	OneUID bool
	// OOMScoreAdj is the shim's own oom_score_adj. No process without privilege can
	// go below it.
	OOMScoreAdj int
	// GuardOwners keeps users other than root from writing to file systems that
	// machines share.
	GuardOwners bool
	// Proxy holds the user's proxy settings as KEY=value.
	Proxy []string

	mounts mounts
}

// Container holds a specification's requests that do not reach runc.
type Container struct {
	// MemoryLimit in bytes; 0 means none.
	MemoryLimit int64
	// MemoryEnforced is true where the kernel enforces the limit.
	MemoryEnforced bool
	// CPULimit in thousandths of a CPU; 0 means none.
	CPULimit int64
	// SeesLimits is true where the container is to see its own limits instead of
	// the machine. It is false with control groups, which do that themselves, and
	// for containers in the node's PID namespace or with an unmasked /proc, such
	// as privileged ones.
	SeesLimits bool
	// SharesPIDs is true if the container has no separate PID namespace, so that
	// the end of its first process does not end the others.
	SharesPIDs bool
	// MemoryVolumes lists the host directories of volumes that may be in memory.
	// What the container writes there counts against its limit.
	MemoryVolumes []string
	// Network is the path of the pod's network namespace. It is set only for the
	// sandbox, and is empty if the pod uses the network of the node.
	Network string
	// Overlay is true if the pod has asked to keep its connections on the overlay.
	Overlay bool
	// Listens is true if the container's seccomp profile notifies a listener.
	Listens bool
	// OwnListener is true if the pod's annotation says that its programs install a listener.
	OwnListener bool
	// Pinned is true if the container must stay root, see guardOwners.
	Pinned bool
	// Pod identifies the container and its pod.
	Pod Pod
	// Notices are for the owner of the pod.
	Notices []Notice
	// Ignored names the requests that the node cannot honour, for the log.
	Ignored []string
}

// Pod names a pod, and one of its containers.
type Pod struct{ Namespace, Name, UID, Container string }

const configFile = "config.json"

// Annotations that containerd sets.
const (
	containerType        = "io.kubernetes.cri.container-type"
	containerTypeSandbox = "sandbox"
	podNamespace         = "io.kubernetes.cri.sandbox-namespace"
	podName              = "io.kubernetes.cri.sandbox-name"
	podUID               = "io.kubernetes.cri.sandbox-uid"
	containerName        = "io.kubernetes.cri.container-name"
)

// A pod with this annotation does not use the fast path.
const (
	fastPathAnnotation = "berth.dev/fast-path"
	fastPathOff        = "off"
)

// In a pod with this annotation no listener answers sysinfo(2): it shows the machine.
const (
	sysinfoAnnotation = "berth.dev/sysinfo"
	sysinfoOff        = "off"
)

// Adapt rewrites the specification in dir, and returns the requests that do not reach
// runc. For a container that sees its limits it adds the mounts that show returns.
func (n Node) Adapt(dir string, show func(Container) []specs.Mount) (Container, error) {
	path := filepath.Join(dir, configFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return Container{}, fmt.Errorf("read container specification: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		return Container{}, fmt.Errorf("parse container specification %s: %w", path, err)
	}
	if n.GuardOwners {
		// Read them each time: mounts of the host come and go, such as automounted homes.
		if n.mounts, err = readMounts("/proc/self/mountinfo"); err != nil {
			return Container{}, err
		}
	}
	c := n.patch(&spec)
	if c.SeesLimits {
		cover(&spec, show(c))
	}
	if text, err = json.Marshal(&spec); err != nil {
		return Container{}, fmt.Errorf("encode container specification %s: %w", path, err)
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return Container{}, fmt.Errorf("write container specification: %w", err)
	}
	return c, nil
}

// patch removes from spec what the node cannot honour, and returns the requests that do
// not reach runc.
func (n Node) patch(spec *specs.Spec) Container {
	var c Container
	sandbox := spec.Annotations[containerType] == containerTypeSandbox
	if spec.Linux != nil {
		c.SharesPIDs = !ownsPIDNamespace(spec.Linux.Namespaces)
		c.MemoryLimit = MemoryLimit(spec.Linux.Resources)
		c.MemoryEnforced = n.has("memory")
		c.CPULimit = CPULimit(spec.Linux.Resources)
		c.SeesLimits = !sandbox && n.Controllers == nil && len(spec.Linux.MaskedPaths) > 0 && !nodePIDs(spec.Linux.Namespaces)
		if n.Controllers == nil {
			spec.Linux.CgroupsPath = ""
		}
		c.Ignored = append(c.Ignored, n.Resources(spec.Linux.Resources)...)
		if sandbox {
			// kubelet asks for the default filter here. Compiling it takes 20 ms,
			// and it would only guard pause, berth's own program, which just waits.
			spec.Linux.Seccomp = nil
			c.Network = namespacePath(spec.Linux.Namespaces, specs.NetworkNamespace)
			c.Overlay = spec.Annotations[fastPathAnnotation] == fastPathOff
			c.OwnListener = spec.Annotations[sysinfoAnnotation] == sysinfoOff
		}
		c.Listens = listens(spec.Linux.Seccomp)
	}
	c.Pod = Pod{spec.Annotations[podNamespace], spec.Annotations[podName], spec.Annotations[podUID], spec.Annotations[containerName]}
	c.MemoryVolumes = memoryVolumes(spec.Mounts)
	inheritReadOnly(spec.Mounts)
	if !sandbox {
		n.guardOwners(spec, &c)
	}
	if n.OneUID {
		n.stripOwners(spec)
	}
	if spec.Process != nil {
		c.Ignored = append(c.Ignored, n.process(spec.Process, sandbox)...)
	}
	return c
}

// memoryVolumes returns the sources of writable mounts that belong to the pod and may be
// in memory: its /dev/shm and its emptyDirs. It omits other tmpfs mounts, such as a
// hostPath to the node's /tmp, because they also hold what others wrote.
func memoryVolumes(mounts []specs.Mount) (paths []string) {
	for _, m := range mounts {
		if m.Type != "bind" || slices.Contains(m.Options, "ro") {
			continue
		}
		if m.Destination == "/dev/shm" && strings.Contains(m.Source, "/sandboxes/") ||
			strings.Contains(m.Source, "/kubernetes.io~empty-dir/") {
			paths = append(paths, m.Source)
		}
	}
	return paths
}

// inheritReadOnly removes the option rw from bind mounts, so that each is as writable as
// its source. A user namespace cannot make a read-only mount of the host writable, and
// runc would fail when it tries to. So a container with a hostPath volume on a read-only file
// system, such as a site's software, would never start.
func inheritReadOnly(mounts []specs.Mount) {
	for i, m := range mounts {
		if m.Type == "bind" {
			mounts[i].Options = slices.DeleteFunc(m.Options, func(o string) bool { return o == "rw" })
		}
	}
}

func namespacePath(namespaces []specs.LinuxNamespace, kind specs.LinuxNamespaceType) string {
	for _, ns := range namespaces {
		if ns.Type == kind {
			return ns.Path
		}
	}
	return ""
}

func listens(profile *specs.LinuxSeccomp) bool {
	return profile != nil && slices.ContainsFunc(profile.Syscalls, func(s specs.LinuxSyscall) bool { return s.Action == specs.ActNotify })
}

// nodePIDs reports whether a container is in the PID namespace of the node. containerd
// then names the namespace by the /proc path of a process of the pod. If the namespaces
// cannot be compared, nodePIDs returns true.
func nodePIDs(namespaces []specs.LinuxNamespace) bool {
	if ownsPIDNamespace(namespaces) {
		return false
	}
	own, err := os.Readlink("/proc/self/ns/pid")
	other, otherErr := os.Readlink(namespacePath(namespaces, specs.PIDNamespace))
	return err != nil || otherErr != nil || own == other
}

func ownsPIDNamespace(namespaces []specs.LinuxNamespace) bool {
	return slices.ContainsFunc(namespaces, func(ns specs.LinuxNamespace) bool {
		return ns.Type == specs.PIDNamespace && ns.Path == ""
	})
}

// MemoryLimit returns the limit in bytes; 0 means none.
func MemoryLimit(r *specs.LinuxResources) int64 {
	if r == nil || r.Memory == nil || r.Memory.Limit == nil || *r.Memory.Limit < 0 {
		return 0
	}
	return *r.Memory.Limit
}

// CPULimit returns the limit in thousandths of a CPU; 0 means none.
func CPULimit(r *specs.LinuxResources) int64 {
	if r == nil || r.CPU == nil || r.CPU.Quota == nil || r.CPU.Period == nil || *r.CPU.Quota <= 0 || *r.CPU.Period == 0 {
		return 0
	}
	return *r.CPU.Quota * 1000 / int64(*r.CPU.Period)
}

func (n Node) has(controller string) bool { return slices.Contains(n.Controllers, controller) }

// Resources drops the settings that need a missing controller, because runc refuses to
// start a container without its limits. It returns the names of the dropped CPU and PID
// settings, which nothing enforces.
func (n Node) Resources(r *specs.LinuxResources) (ignored []string) {
	if r == nil {
		return nil
	}
	if !n.has("memory") {
		r.Memory = nil // enforced by package memory
	}
	if r.CPU != nil {
		if !n.has("cpuset") {
			if r.CPU.Cpus != "" || r.CPU.Mems != "" {
				ignored = append(ignored, "cpuset")
			}
			r.CPU.Cpus, r.CPU.Mems = "", ""
		}
		if !n.has("cpu") {
			if r.CPU.Quota != nil && *r.CPU.Quota > 0 {
				ignored = append(ignored, "cpu limit")
			}
			r.CPU = &specs.LinuxCPU{Cpus: r.CPU.Cpus, Mems: r.CPU.Mems}
		}
		if *r.CPU == (specs.LinuxCPU{}) {
			r.CPU = nil
		}
	}
	if !n.has("pids") {
		if r.Pids != nil && r.Pids.Limit != nil && *r.Pids.Limit > 0 {
			ignored = append(ignored, "pids limit")
		}
		r.Pids = nil
	}
	if !n.has("io") {
		r.BlockIO = nil
	}
	if !n.has("hugetlb") {
		r.HugepageLimits = nil
	}
	if !n.has("rdma") {
		r.Rdma = nil
	}
	for key := range r.Unified {
		if controller, _, _ := strings.Cut(key, "."); !n.has(controller) {
			delete(r.Unified, key)
		}
	}
	if n.Controllers == nil {
		// Device rules are programs attached to a cgroup. Without one, what a
		// container may open is decided by the devices it is given: it cannot
		// create others in a user namespace.
		r.Devices, r.Unified = nil, nil
	}
	return ignored
}

// Exec adapts a process that is started in a running container.
func (n Node) Exec(c Container, p *specs.Process) {
	n.process(p, false)
	if c.Pinned {
		pin(p)
	}
}

// process adapts the first process of a container, or a process started by exec. It
// returns the requests that the node cannot honour.
func (n Node) process(p *specs.Process, sandbox bool) (ignored []string) {
	p.OOMScoreAdj = n.oomScoreAdj(p.OOMScoreAdj, sandbox)
	if !sandbox {
		p.Env = n.withProxy(p.Env)
	}
	if n.OneUID {
		if p.User.UID != 0 || p.User.GID != 0 {
			ignored = append(ignored, fmt.Sprintf("user %d:%d", p.User.UID, p.User.GID))
		}
		// Additional groups are dropped without a report: kubelet always adds the
		// pod's group, and every file belongs to the one gid anyway.
		p.User = specs.User{Umask: p.User.Umask, Username: p.User.Username}
	}
	return ignored
}

// oomScoreAdj maps Kubernetes' values, -997 (guaranteed) to 1000 (best effort), to the
// range from 500 to 1000, but not below the shim's value, which an unprivileged process
// cannot undercut. So the kernel ends pods before processes of berth. The pause process
// gets the shim's value, because it is small, and its death ends the whole pod.
func (n Node) oomScoreAdj(asked *int, sandbox bool) *int {
	if sandbox {
		v := n.OOMScoreAdj
		return &v
	}
	v := 500
	if asked != nil {
		v += min(max(*asked, 0), 1000) / 2
	}
	v = max(v, n.OOMScoreAdj)
	return &v
}

// withProxy adds the user's proxy variables that the container does not set.
// Programs disagree on the case of these variables, so either case counts.
func (n Node) withProxy(env []string) []string {
	said := map[string]bool{}
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		said[strings.ToUpper(name)] = true
	}
	for _, e := range n.Proxy {
		name, _, _ := strings.Cut(e, "=")
		if !said[strings.ToUpper(name)] {
			env = append(env, e)
		}
	}
	return env
}

// stripOwners removes owners from mount options and devices. The kernel returns EINVAL
// for an ID that is not mapped, such as devpts' gid=5.
func (n Node) stripOwners(spec *specs.Spec) {
	for i := range spec.Mounts {
		spec.Mounts[i].Options = slices.DeleteFunc(spec.Mounts[i].Options, func(o string) bool {
			return strings.HasPrefix(o, "gid=") || strings.HasPrefix(o, "uid=")
		})
	}
	if spec.Linux == nil {
		return
	}
	for i := range spec.Linux.Devices {
		spec.Linux.Devices[i].UID, spec.Linux.Devices[i].GID = nil, nil
	}
}
