package probe

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Cgroup is the process's place in the control group hierarchies. It records
// whether the process may make its own groups.
type Cgroup struct {
	// Layout is "v2", "v1", "hybrid" (v1 controllers beside an empty v2
	// hierarchy) or "none".
	Layout string
	// Path is the process's v2 group in the file system; empty without v2.
	Path string
	// Controllers lists the controllers that Path can delegate.
	Controllers []string
	// Delegated is true if berth may make groups below Path and limit memory and
	// processors in them.
	Delegated bool
	// Reason is the reason why Delegated is false.
	Reason string
}

// parseCgroup reads /proc/self/cgroup: controller (or "name=...") to path. The
// v2 hierarchy has the empty key.
func parseCgroup(content []byte) map[string]string {
	groups := map[string]string{}
	for line := range strings.Lines(string(content)) {
		fields := strings.SplitN(strings.TrimRight(line, "\n"), ":", 3)
		if len(fields) != 3 || !strings.HasPrefix(fields[2], "/") {
			continue
		}
		for controller := range strings.SplitSeq(fields[1], ",") {
			groups[controller] = fields[2]
		}
	}
	return groups
}

// cgroupDirs returns the directories of the process's group and its ancestors,
// from the innermost to the root of the mount. The controller is empty for v2. If the
// group is outside of the mount, because it belongs to another cgroup namespace,
// cgroupDirs returns only the root of the mount. Limits of the group are unknown then.
func (h *Host) cgroupDirs(controller string) []string {
	group, ok := h.cgroups()[controller]
	if !ok {
		return nil
	}
	var point, root string
	for _, mount := range h.mounts() {
		v2 := controller == "" && mount.Type == "cgroup2"
		v1 := controller != "" && mount.Type == "cgroup" && slices.Contains(mount.Super, controller)
		if v2 || v1 {
			point, root = mount.Point, mount.Root
		}
	}
	if point == "" {
		return nil
	}
	// Without a cgroup namespace the mount's root is "/". In a container it may
	// be the container's own group, and the path starts with it.
	relative := "/"
	if root = path.Clean(root); !outside(group) && within(path.Clean(group), root) {
		relative = path.Clean("/" + strings.TrimPrefix(path.Clean(group), root))
	}
	var dirs []string
	for {
		dirs = append(dirs, path.Join(point, relative))
		if relative == "/" {
			return dirs
		}
		relative = path.Dir(relative)
	}
}

// outside reports whether a group is above the root of the process's cgroup
// namespace. The kernel writes such a path with leading dots.
func outside(group string) bool { return strings.HasPrefix(group, "/..") }

// Cgroup returns the cgroup of the process, and whether a v2 subtree is delegated to it. It
// changes nothing: it only checks whether the directory and the files cgroup.procs and
// cgroup.subtree_control are writable.
func (h *Host) Cgroup() Cgroup {
	groups := h.cgroups()
	_, unified := groups[""]
	_, memoryV1 := groups["memory"]
	_, cpuV1 := groups["cpu"]
	dirs := h.cgroupDirs("")
	c := Cgroup{Layout: "none"}
	switch {
	case (memoryV1 || cpuV1) && unified:
		c.Layout = "hybrid"
	case memoryV1 || cpuV1 || len(groups) > 0 && !unified:
		c.Layout = "v1"
	case unified:
		c.Layout = "v2"
	}
	if len(dirs) == 0 {
		c.Reason = "no cgroup v2 hierarchy is mounted"
		return c
	}
	c.Path = dirs[0]
	c.Controllers = strings.Fields(h.line(path.Join(c.Path, "cgroup.controllers")))
	kind := h.line(path.Join(c.Path, "cgroup.type")) // absent in the root group
	switch {
	case c.Layout == "hybrid":
		c.Reason = "the controllers are in v1 hierarchies (hybrid layout)"
	case outside(groups[""]):
		c.Reason = "the group of this process is outside of what is mounted"
	case kind == "" && groups[""] == "/":
		c.Reason = "the process is in the root group"
	case kind != "" && kind != "domain":
		c.Reason = "the group is of type " + kind
	case h.uid == 0:
		// Root can write to all groups, but they belong to systemd or Slurm, which fail
		// with groups that they did not make.
		c.Reason = "root may write all groups, which delegates none"
	case h.kernel.Access(c.Path, unix.W_OK|unix.X_OK) != nil:
		c.Reason = "the directory " + c.Path + " is not writable for this user"
	case h.kernel.Access(path.Join(c.Path, "cgroup.procs"), unix.W_OK) != nil,
		h.kernel.Access(path.Join(c.Path, "cgroup.subtree_control"), unix.W_OK) != nil:
		c.Reason = "cgroup.procs or cgroup.subtree_control in " + c.Path + " is not writable for this user"
	case !slices.Contains(c.Controllers, "memory") || !slices.Contains(c.Controllers, "cpu"):
		c.Reason = "the group lacks the memory or cpu controller (has: " + strings.Join(c.Controllers, " ") + ")"
	case slurmTask(c.Path):
		c.Reason = "the group is that of a Slurm task, and Slurm would not find processes in groups below it"
	default:
		c.Delegated = true
	}
	return c
}

// slurmTask reports whether Slurm made a group for a task (cgroup/v2). Slurm
// looks for a step's processes only in these groups. A process that moves into a
// group below gets no signal of scancel and keeps Slurm from removing the step's
// groups. See cgroup_p_step_get_pids in Slurm's
// src/plugins/cgroup/v2/cgroup_v2.c.
func slurmTask(group string) bool {
	names := strings.Split(group, "/")
	if len(names) < 4 {
		return false
	}
	ok, err := path.Match("job_*/step_*/user/task_*", strings.Join(names[len(names)-4:], "/"))
	return ok && err == nil
}

// cgroupNumber reads a limit; ok is false for "max", "-1" and absent files.
func (h *Host) cgroupNumber(file string) (uint64, bool) {
	n, err := strconv.ParseUint(h.line(file), 10, 64)
	return n, err == nil
}
