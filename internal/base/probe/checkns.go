package probe

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// refusedKernel is the oldest kernel version that berth accepts. Kernels from fullKernel on
// (RHEL 9) have every feature that berth uses.
var (
	refusedKernel = [2]int{4, 18}
	fullKernel    = [2]int{5, 14}
)

func checkKernel(h *Host) Result {
	release := h.describe().Kernel
	r := Result{Name: "kernel", Title: "kernel", Level: Required, OK: Yes, Found: "Linux " + release}
	major, minor, ok := kernelVersion(release)
	older := func(than [2]int) bool { return major < than[0] || major == than[0] && minor < than[1] }
	remedy := Remedy{Admin: fmt.Sprintf("install a kernel of version %d.%d or newer (RHEL 9, Debian 12, Ubuntu 22.04 have one)", fullKernel[0], fullKernel[1])}
	switch {
	case !ok:
		r.OK = Unknown
	case older(refusedKernel):
		r.OK, r.Cost, r.Remedy = No, "user namespaces, overlayfs and seccomp are too old for berth", remedy
	case older(fullKernel):
		r.OK, r.Cost, r.Remedy = Degraded, fmt.Sprintf("older than %d.%d: only what the probes below find works", fullKernel[0], fullKernel[1]), remedy
	}
	return r
}

// kernelVersion reads the first two numbers of "5.14.0-427.el9.x86_64".
func kernelVersion(release string) (major, minor int, ok bool) {
	first, rest, _ := strings.Cut(release, ".")
	digits := strings.IndexFunc(rest, func(r rune) bool { return r < '0' || r > '9' })
	if digits >= 0 {
		rest = rest[:digits]
	}
	major, err := strconv.Atoi(first)
	if err != nil {
		return 0, 0, false
	}
	minor, err = strconv.Atoi(rest)
	return major, minor, err == nil
}

// answer returns r with the outcome of a trial. The result is Unknown if the trial has no
// outcome, or if trialUser or one of the trials in needs has failed. found describes
// success.
func (tried outcomes) answer(r Result, trial, found string, needs ...string) Result {
	for _, need := range append([]string{trialUser}, needs...) {
		if o, ok := tried[need]; !ok || !o.ok() {
			r.OK, r.Found, r.Cost, r.Remedy = Unknown, "not checked: it depends on the "+need+" namespace", "", Remedy{}
			return r
		}
	}
	o, ok := tried[trial]
	switch {
	case !ok:
		r.OK, r.Found, r.Cost, r.Remedy = Unknown, "no answer: the check did not end", "", Remedy{}
	case o.ok():
		r.OK, r.Found, r.Cost, r.Remedy = Yes, found, "", Remedy{}
	default:
		r.Found = o.Error
		if r.OK == "" {
			r.OK = No
		}
	}
	return r
}

func checkNamespaces(h *Host, tried outcomes) []Result {
	remedy, why := whyNoUserNamespace(h, tried[trialUser])
	userNS := Result{Name: "user-namespace", Title: "user namespaces", Level: Required, OK: Yes, Found: "created, ids mapped"}
	if o, ok := tried[trialUser]; !ok || !o.ok() {
		userNS.OK, userNS.Found = No, strings.TrimSpace(o.Error+why)
		userNS.Cost, userNS.Remedy = "berth cannot run: everything it does without root rests on them", remedy
	}
	results := []Result{userNS}
	for _, ns := range []struct{ trial, name, title string }{
		{trialMountNS, "mount-namespace", "mount namespaces"},
		{trialPIDNS, "pid-namespace", "PID namespaces"},
		{trialNetNS, "network-namespace", "network namespaces"},
		{trialIPCNS, "ipc-namespace", "IPC namespaces"},
		{trialUTSNS, "uts-namespace", "UTS namespaces"},
		{trialCgroupNS, "cgroup-namespace", "cgroup namespaces"},
	} {
		r := Result{Name: ns.name, Title: ns.title, Level: Required, Cost: "berth cannot run: it isolates pods by them", Remedy: remedy}
		switch tried[ns.trial].Errno {
		case unix.ENOSPC:
			r.Remedy.Admin = fmt.Sprintf("sysctl -w user.max_%s_namespaces=100000", sysctlWord(ns.trial))
		case unix.EINVAL:
			r.Remedy = Remedy{Admin: "use a kernel built with " + strings.ToUpper("CONFIG_"+ns.trial+"_NS")}
		}
		results = append(results, tried.answer(r, ns.trial, "created"))
	}
	return results
}

func sysctlWord(trial string) string {
	if trial == trialMountNS {
		return "mnt"
	}
	return trial
}

// whyNoUserNamespace guesses from the kernel's settings what forbids user namespaces. It
// returns the remedy, and text to append to the error.
func whyNoUserNamespace(h *Host, o outcome) (Remedy, string) {
	persist := func(setting string) string {
		return fmt.Sprintf("sysctl -w %s   # and keep it in /etc/sysctl.d/90-berth.conf", setting)
	}
	if h.appArmorRestricts() {
		return Remedy{Admin: persist("kernel.apparmor_restrict_unprivileged_userns=0") + "; or a profile only for berth: docs/admin.md, AppArmor"},
			": kernel.apparmor_restrict_unprivileged_userns is 1 (Ubuntu)"
	}
	if value, ok := h.sysctl("kernel.unprivileged_userns_clone"); ok && value == "0" {
		return Remedy{Admin: persist("kernel.unprivileged_userns_clone=1")}, ": kernel.unprivileged_userns_clone is 0"
	}
	if n, ok := h.number("user.max_user_namespaces"); ok && n == 0 {
		return Remedy{Admin: persist("user.max_user_namespaces=100000")}, ": user.max_user_namespaces is 0"
	}
	switch o.Errno {
	case unix.ENOSPC, unix.EUSERS:
		return Remedy{
			User:  "end other runs of yours on this node: lsns -t user",
			Admin: persist("user.max_user_namespaces=100000"),
		}, ": the limit user.max_user_namespaces is reached"
	case unix.EINVAL:
		return Remedy{Admin: "use a kernel built with CONFIG_USER_NS"}, ": the kernel has no user namespaces"
	}
	if h.status()["Seccomp"] == "2" {
		return Remedy{User: "run berth outside of the container", Admin: "allow unshare and clone in the container's seccomp profile"},
			": a seccomp filter is in force (a container?)"
	}
	return Remedy{Admin: "look into the log of the security module: journalctl -k | grep -iE 'apparmor|avc|userns'"}, ""
}

func (h *Host) appArmorRestricts() bool {
	value, ok := h.sysctl("kernel.apparmor_restrict_unprivileged_userns")
	return ok && value == "1"
}

// namespaceNeeds holds the number of namespaces that a cluster needs: min without pods,
// good with more pods than most users start, and perPod for each pod. Pods need no user
// namespace.
var namespaceNeeds = []struct {
	kind      string
	min, good uint64
	perPod    uint64
}{
	{"user", 2, 8, 0}, {"cgroup", 4, 256, 1},
	{"mnt", 8, 512, 2}, {"pid", 8, 512, 2}, {"net", 4, 256, 1}, {"ipc", 4, 256, 1}, {"uts", 4, 256, 1},
}

func checkNamespaceLimits(h *Host) Result {
	r := Result{Name: "namespace-limits", Title: "namespace limits", Level: Required, OK: Yes}
	smallest := uint64(math.MaxUint64)
	for _, need := range namespaceNeeds {
		name := "user.max_" + need.kind + "_namespaces"
		n, ok := h.number(name)
		if !ok {
			continue
		}
		state, cost := Yes, ""
		switch {
		case n < need.min:
			state, cost = No, "a cluster takes at least "+strconv.FormatUint(need.min, 10)
		case n < need.good && need.perPod == 0:
			state, cost = Degraded, "few clusters of yours fit on a node at a time"
		case n < need.good:
			state, cost = Degraded, fmt.Sprintf("pods beyond about %d fail to start with \"no space left on device\"", (n-need.min/2)/need.perPod)
		}
		worse := state == No && r.OK != No || state == Degraded && r.OK == Yes
		if worse || state == r.OK && n < smallest {
			smallest, r.OK, r.Cost = n, state, cost
			r.Found = fmt.Sprintf("%s is %d for each user", name, n)
			if state != Yes {
				r.Remedy = namespaceRemedy(name)
			}
		}
	}
	if r.Found == "" {
		r.OK, r.Found = Unknown, "user.max_*_namespaces cannot be read"
	}
	if r.OK == Yes {
		r.Found += ", none of the other kinds is less"
	}
	return r
}

// checkMounts reports whether the mounts work that the sandbox makes before anything else
// starts.
func checkMounts(h *Host, tried outcomes) []Result {
	blocked := "the mount is refused"
	remedy := Remedy{Admin: "look into the log of the security module: journalctl -k | grep -iE 'apparmor|avc'"}
	if h.appArmorRestricts() {
		blocked = "kernel.apparmor_restrict_unprivileged_userns takes the rights away from user namespaces"
		remedy.Admin = "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0   # or a profile only for berth: docs/admin.md, AppArmor"
	}
	tmpfs := tried.answer(Result{Name: "own-tmpfs", Title: "own tmpfs", Level: Required, Cost: blocked + ": there is no place for keys and sockets", Remedy: remedy},
		trialTmpfs, "mounted", trialMountNS)

	proc := Result{Name: "own-proc", Title: "own /proc", Level: Required,
		Cost: blocked + ": containers cannot have their own /proc", Remedy: remedy}
	if covers := h.coversOf("/proc"); len(covers) > 0 && tried[trialProc].Errno == unix.EPERM {
		proc.Cost = "parts of /proc are covered (" + strings.Join(covers, ", ") + "), and the kernel then forbids a /proc that would show them"
		proc.Remedy = Remedy{
			User:  "run berth outside of the container",
			Admin: "start the container with an unmasked /proc: podman --security-opt unmask=ALL, docker --security-opt systempaths=unconfined",
		}
	}
	sys := Result{Name: "own-sys", Title: "own /sys", Level: Required,
		Cost: blocked + ": pods and the network plugins cannot see their own devices", Remedy: remedy}
	if covers := h.coversOf("/sys"); len(covers) > 0 && tried[trialSys].Errno == unix.EPERM {
		sys.Cost = "/sys is read-only or covered in parts (" + strings.Join(covers, ", ") + "), and the kernel then forbids one that is not"
		sys.Remedy = Remedy{User: "run berth outside of the container", Admin: "mount /sys in the container as on the host"}
	}
	cgroup := Result{Name: "own-cgroupfs", Title: "own cgroup tree", Level: Required,
		Cost: blocked + ": the kubelet and the runtime find no cgroup v2 hierarchy", Remedy: remedy}
	return []Result{
		tmpfs,
		tried.answer(proc, trialProc, "mounted", trialMountNS, trialPIDNS),
		tried.answer(sys, trialSys, "mounted", trialMountNS, trialNetNS),
		tried.answer(cgroup, trialCgroupfs, "cgroup v2 mounted", trialMountNS, trialCgroupNS),
	}
}

// coversOf returns the mounts that hide a part of a directory. While there are such mounts,
// the kernel permits no new mount of the file system in a user namespace. It ignores
// mounts on empty directories that exist only to be mounted on.
func (h *Host) coversOf(dir string) []string {
	harmless := map[string]bool{
		"/proc/sys/fs/binfmt_misc": true, "/proc/fs/nfsd": true,
		"/sys/fs/cgroup": true, "/sys/kernel/debug": true, "/sys/kernel/tracing": true, "/sys/kernel/security": true,
		"/sys/kernel/config": true, "/sys/fs/pstore": true, "/sys/fs/bpf": true, "/sys/fs/fuse/connections": true,
		"/sys/firmware/efi/efivars": true, "/sys/fs/selinux": true,
	}
	var covers []string
	for _, mount := range h.mounts() {
		if mount.Point == dir && mount.has("ro") {
			covers = append(covers, dir+" read-only")
		}
		if mount.Point != dir && within(mount.Point, dir) && !harmless[mount.Point] && !within(mount.Point, "/sys/fs/cgroup") {
			covers = append(covers, mount.Point)
		}
	}
	if len(covers) > 4 {
		covers = append(covers[:4], fmt.Sprintf("and %d more", len(covers)-4))
	}
	return covers
}
