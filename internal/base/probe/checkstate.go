package probe

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

func checkStateDir(h *Host, best Candidate, rejected []Candidate) Result {
	r := Result{Name: "state-directory", Title: "state directory", Level: Required, OK: Yes}
	var refused []string
	named := h.getenv("BERTH_STATE_DIR")
	for _, candidate := range rejected {
		// Omit a directory that only does not exist, unless the user has named it.
		if candidate.Path == named || candidate.Kind == KindNetwork || best.Path == "" {
			refused = append(refused, candidate.Path+": "+candidate.Reason)
		}
	}
	elsewhere := Remedy{User: "export BERTH_STATE_DIR=DIR   # or --state-dir DIR: a directory of yours on a disk of the node"}
	if best.Path == "" {
		r.OK, r.Found = No, strings.Join(refused, "; ")
		r.Cost, r.Remedy = "there is no place for images, volumes and logs", elsewhere
		r.Remedy.Admin = "give jobs a node-local directory: job_container/tmpfs in Slurm, or a local /tmp"
		return r
	}
	r.Found = fmt.Sprintf("%s (%s, %s free)", best.Path, best.Type, Bytes(best.FreeBytes))
	if len(refused) > 0 {
		r.Found += "; refused: " + strings.Join(refused, "; ")
	}
	switch {
	case best.Kind == KindMemory:
		r.OK, r.Cost = Degraded, "it is in memory: images and volumes count against the memory of the job"
	case best.FreeBytes < goodStateSpace:
		r.OK, r.Cost = Degraded, fmt.Sprintf("less than %s: large images will not fit", Bytes(goodStateSpace))
	case best.NoExec:
		r.OK, r.Cost = Degraded, "it is mounted noexec: programs in volumes of pods cannot be executed"
	case named != "" && best.Path != named:
		r.OK, r.Cost = Degraded, "BERTH_STATE_DIR is not used"
	}
	if r.OK == Degraded {
		r.Remedy = elsewhere
	}
	return r
}

// checkPrograms reports whether the programs in libexec can be executed.
func checkPrograms(h *Host, libexec string) Result {
	r := Result{Name: "programs", Title: "berth's programs", Level: Required, OK: Yes, Found: libexec}
	if libexec == "" || !h.exists(libexec) {
		r.OK, r.Found = Unknown, libexec+" is not there"
		r.Cost, r.Remedy = "berth runs only from a complete directory", Remedy{User: "unpack the whole tarball, or run make"}
		return r
	}
	if stat, err := h.kernel.Statfs(libexec); err == nil && stat.NoExec {
		r.OK, r.Found = No, libexec+" is on a file system mounted noexec"
		r.Cost = "the components cannot be executed"
		r.Remedy = Remedy{User: "unpack berth in a directory that allows programs", Admin: "install berth in /opt or /usr/local"}
		return r
	}
	if mount, ok := mountOf(h.mounts(), libexec); ok && kindOf(mount.Type, 0) == KindFUSE {
		// Root of a user namespace is another uid to a FUSE server only where
		// ids are mapped; the supervisor itself sees no difference.
		r.Found += " (on FUSE)"
	}
	return r
}

// checkHome describes the effect of a noexec home or /tmp. It does not affect
// berth, but it affects scripts.
func checkHome(h *Host) Result {
	r := Result{Name: "home", Title: "home and /tmp", Level: Optional, OK: Yes}
	var noexec, seen []string
	for _, dir := range []string{h.getenv("HOME"), "/tmp"} {
		if dir == "" {
			continue
		}
		mount, ok := mountOf(h.mounts(), dir)
		if !ok {
			continue
		}
		seen = append(seen, dir+" on "+mount.Type)
		if mount.has("noexec") {
			noexec = append(noexec, dir)
		}
	}
	r.Found = strings.Join(seen, ", ")
	if len(noexec) > 0 {
		r.OK, r.Found = Degraded, r.Found+"; noexec: "+strings.Join(noexec, ", ")
		r.Cost = "programs there cannot be executed, on the host or by pods that mount them"
		r.Remedy = Remedy{User: "call scripts by their interpreter: berth run -- sh script.sh"}
	}
	return r
}

func checkOverlay(best Candidate, tried outcomes) Result {
	r := Result{Name: "overlayfs", Title: "overlayfs", Level: Recommended,
		Cost:   "layers of images are copied instead of stacked: slower starts, more space",
		Remedy: Remedy{Admin: "modprobe overlay && echo overlay > /etc/modules-load.d/berth-overlay.conf; Linux 5.11 or newer"}}
	if best.Path == "" {
		return tried.answer(r, trialOverlayRAM, "works on tmpfs", trialMountNS)
	}
	r = tried.answer(r, trialOverlay, "works on "+best.Path+" ("+best.Type+")", trialMountNS)
	if ram, ok := tried[trialOverlayRAM]; r.OK == No && ok && ram.ok() {
		r.Found += "; it works on tmpfs"
		r.Remedy = Remedy{User: "export BERTH_STATE_DIR=DIR   # a directory on ext4, xfs or btrfs, or on tmpfs such as /dev/shm"}
	}
	return r
}

func checkFUSE(tried outcomes) Result {
	remedy := Remedy{Admin: "modprobe fuse && chmod 0666 /dev/fuse"}
	return tried.answer(Result{Name: "fuse", Title: "FUSE", Level: Optional,
		Cost: "layers of images are unpacked instead of kept as one file each: slower starts of large images, no cache that runs share", Remedy: remedy}, trialFUSE, "/dev/fuse opens, mounted in a user namespace", trialMountNS)
}

func checkPivot(h *Host, tried outcomes) Result {
	r := tried.answer(Result{Name: "pivot-root", Title: "pivot_root", Level: Optional,
		Cost: "containers get their root by a move of mounts instead",
	}, trialPivot, "works", trialMountNS)
	if h.rootIsRootfs() {
		// A diskless node. Nothing is lost, so it is no defect.
		r.OK, r.Cost, r.Remedy = Yes, "", Remedy{}
		r.Found = "the root is the initramfs (diskless node), where it cannot work; berth does without"
	}
	return r
}

func checkCgroup(h *Host) Result {
	c := h.Cgroup()
	r := Result{Name: "cgroup", Title: "cgroup delegation", Level: Recommended, OK: Yes,
		Found: fmt.Sprintf("cgroup %s, %s is writable (%s)", c.Layout, c.Path, strings.Join(c.Controllers, " "))}
	if !c.Delegated {
		r.OK, r.Found = No, "cgroup "+c.Layout+": "+c.Reason
		r.Cost = "memory limits of containers are enforced by watching instead of by the kernel; CPU limits are not enforced"
		r.Remedy = delegationRemedy(h, c)
	}
	return r
}

// delegationRemedy returns no remedy inside of a job, because Slurm creates cgroups as root
// and delegates none.
func delegationRemedy(h *Host, c Cgroup) Remedy {
	switch {
	case h.inJob():
		return Remedy{}
	case c.Layout == "v2":
		return Remedy{User: "systemd-run --user --scope -p Delegate=yes berth run ...", Admin: dropIn("user@.service", "Delegate=cpu cpuset io memory pids")}
	default:
		return Remedy{Admin: "grubby --update-kernel=ALL --args=systemd.unified_cgroup_hierarchy=1 && reboot   # cgroup v2 only"}
	}
}

func checkPidfd(tried outcomes) Result {
	return tried.answer(Result{Name: "pidfd", Title: "process descriptors", Level: Recommended,
		Cost: "the end of processes is polled for", Remedy: Remedy{Admin: "use Linux 5.3 or newer"}}, trialPidfd, "pidfd_open works")
}

// checkVisibility checks the host's /proc. A hidden one costs berth nothing,
// because the sandbox has its own.
func checkVisibility(h *Host) Result {
	r := Result{Name: "proc-visibility", Title: "visible processes", Level: Optional, OK: Yes, Found: "all processes are visible in /proc"}
	mount, _ := mountOf(h.mounts(), "/proc")
	for _, option := range append(mount.Options, mount.Super...) {
		value, ok := strings.CutPrefix(option, "hidepid=")
		if ok && value != "0" && value != "off" {
			r.OK, r.Found = Degraded, "/proc is mounted with "+option
			r.Cost = "on the host, ps and top do not show you the processes of your pods that run as other uids"
			r.Remedy = Remedy{User: "look from inside: berth kubectl exec, or berth shell"}
		}
	}
	if h.kernel.Access("/proc/self/ns/user", unix.R_OK) != nil {
		r.OK, r.Found = Degraded, "/proc/self/ns cannot be read"
	}
	return r
}

// checkSecurityModules only lists the modules. The trials find out whether one
// forbids something.
func checkSecurityModules(h *Host) Result {
	r := Result{Name: "security-modules", Title: "security modules", Level: Optional, OK: Yes}
	var found []string
	if list := h.line("/sys/kernel/security/lsm"); list != "" {
		found = append(found, list)
	}
	if current := strings.Trim(h.line("/proc/self/attr/current"), "\x00"); current != "" {
		found = append(found, "this process is "+current)
	}
	switch h.line("/sys/fs/selinux/enforce") {
	case "1":
		found = append(found, "SELinux is enforcing")
	case "0":
		found = append(found, "SELinux is permissive")
	}
	if h.appArmorRestricts() {
		found = append(found, "kernel.apparmor_restrict_unprivileged_userns is 1")
	}
	if value, ok := h.sysctl("kernel.unprivileged_userns_clone"); ok {
		found = append(found, "kernel.unprivileged_userns_clone is "+value)
	}
	if h.status()["Seccomp"] == "2" {
		found = append(found, "a seccomp filter is in force")
	}
	r.Found = strings.Join(found, "; ")
	if r.Found == "" {
		r.Found = "none seen"
	}
	return r
}
