package probe

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits that a head node needs. With less than the minimum, berth cannot run. With less
// than the good value, many pods or their programs can fail.
const (
	filesMin, filesGood         = 4096, 65536
	processesMin, processesGood = 512, 4096
	inotifyMin, inotifyGood     = HeadWatchers, 64
	watchesGood                 = 8192
	memoryGood                  = 1536 << 20
)

// HeadWatchers is the number of inotify instances of the roles of a node with a control
// plane.
const HeadWatchers = 17

const (
	instancesSetting = "fs.inotify.max_user_instances"
	moreInstances    = "sysctl -w fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=1048576   # and keep it in /etc/sysctl.d/90-berth.conf"
)

func checkMemory(m Memory, state Candidate) Result {
	r := Result{Name: "memory", Title: "memory", Level: Required, OK: Yes}
	r.Found = fmt.Sprintf("%s (%s)", Bytes(m.Bytes), m.Source)
	if !m.Enforced {
		r.Found += ", not enforced by a cgroup"
	}
	more := Remedy{User: "ask Slurm for more: --mem=2G"}
	switch {
	case m.Bytes == 0:
		r.OK, r.Found = Unknown, "/proc/meminfo cannot be read"
	case !m.Holds(HeadMemory):
		r.OK, r.Cost, r.Remedy = No, fmt.Sprintf("berth's own components and a small pod need %s", Bytes(HeadMemory+SmallPod)), more
	case m.Bytes < memoryGood:
		r.OK, r.Cost, r.Remedy = Degraded, "little is left for pods beside berth's own components", more
	}
	if state.Kind == KindMemory && r.OK == Yes {
		r.Found += "; images and volumes count against it, as " + state.Path + " is in memory"
	}
	return r
}

func checkCPUs(h *Host) Result {
	c := h.CPUs()
	return Result{Name: "cpus", Title: "processors", Level: Required, OK: Yes, Found: fmt.Sprintf("%d (%s)", c.Count, c.Source)}
}

// checkLimits checks the resource limits of the process and the limits of the
// kernel behind them.
func checkLimits(h *Host) []Result {
	results := []Result{checkFiles(h), checkProcesses(h)}
	for _, limit := range ProcessLimits() {
		results = append(results, checkProcessLimit(h, limit))
	}
	return results
}

// ProcessLimit is a resource limit of a process that a node raises to Least bytes or
// more. The hard limit must permit that.
type ProcessLimit struct {
	Resource int
	Least    uint64
	// Option is the letter of ulimit, What names the limit in a sentence.
	Option, What string
}

// ProcessLimits returns the limits that a user's shell may have lowered, and that Slurm
// copies from the login host. The components of a cluster map much more address space than
// they use. The stack limit is the default of most systems.
func ProcessLimits() []ProcessLimit {
	return []ProcessLimit{
		{unix.RLIMIT_AS, 64 << 30, "-v", "address space"},
		{unix.RLIMIT_STACK, 8 << 20, "-s", "the stack"},
	}
}

// Remedy names the hard limit that is needed and the way to get it for a job.
func (l ProcessLimit) Remedy() string {
	return fmt.Sprintf("'ulimit -H %s' has to allow %d KiB; with Slurm, submit with --propagate=NONE", l.Option, l.Least>>10)
}

func checkProcessLimit(h *Host, l ProcessLimit) Result {
	title := strings.TrimPrefix(l.What, "the ")
	r := Result{Name: strings.ReplaceAll(title, " ", "-"), Title: title, Level: Required, OK: Yes}
	_, hard, err := h.kernel.Limit(l.Resource)
	if err != nil {
		r.OK, r.Found = Unknown, err.Error()
		return r
	}
	r.Found = "hard limit " + limitText(hard)
	if hard < l.Least {
		r.OK, r.Cost, r.Remedy.User = No, "berth run refuses to start a node", l.Remedy()
	}
	return r
}

func checkFiles(h *Host) Result {
	r := Result{Name: "open-files", Title: "open files", Level: Required, OK: Yes}
	soft, hard, err := h.kernel.Limit(unix.RLIMIT_NOFILE)
	if err != nil {
		r.OK, r.Found = Unknown, err.Error()
		return r
	}
	r.Found = fmt.Sprintf("soft %s, hard %s (berth raises soft to hard)", limitText(soft), limitText(hard))
	if hard < filesGood {
		r.OK, r.Cost = Degraded, "pods that open many files or connections fail"
		if hard < filesMin {
			r.OK, r.Cost = No, "etcd and the API server run out of descriptors"
		}
		r.Remedy = limitRemedy(h, "nofile", "LimitNOFILE", strconv.Itoa(filesGood*8))
	}
	return r
}

func checkProcesses(h *Host) Result {
	r := Result{Name: "processes", Title: "processes", Level: Required, OK: Yes}
	capacity := h.freeThreads(math.MaxUint64)
	r.Found = capacity.limit
	if capacity.free < processesGood {
		r.OK, r.Cost = Degraded, fmt.Sprintf("pods beyond about %d fail to start with \"resource temporarily unavailable\"", max(0, int(capacity.free)-nodeThreads)/podThreads)
		if capacity.free < processesMin {
			r.OK, r.Cost = No, "the components of Kubernetes cannot start their threads"
		}
		r.Remedy = capacity.remedy
	}
	return r
}

func checkInotify(h *Host, tried outcomes) Result {
	r := Result{Name: "inotify", Title: "inotify", Level: Required, OK: Yes}
	instances, ok := h.number(instancesSetting)
	watches, _ := h.number("fs.inotify.max_user_watches")
	if !ok {
		r.OK, r.Found = Unknown, instancesSetting+" cannot be read"
		return r
	}
	used := h.used.inotifyInstances()
	r.Found = fmt.Sprintf("%d instances and %d watches for each user, in use %d instances", instances, watches, used)
	free := instances - min(instances, used)
	remedy := Remedy{
		User:  "end programs of yours that watch files: editors, file synchronisation",
		Admin: moreInstances,
	}
	switch o, ok := tried[trialInotify]; {
	case ok && !o.ok(), free < inotifyMin:
		r.OK, r.Cost, r.Remedy = No, "the kubelet cannot follow its files, and pods fail with \"too many open files\"", remedy
	case free < inotifyGood || watches < watchesGood:
		r.OK, r.Cost, r.Remedy = Degraded, "pods that watch files (kubectl logs -f, web servers, language servers) can fail with \"too many open files\"", remedy
	}
	return r
}

// checkKeyrings checks the room for the one session keyring that each node needs.
// Containers need none.
func checkKeyrings(h *Host, tried outcomes) Result {
	r := Result{Name: "keyrings", Title: "kernel keys", Level: Required, OK: Yes}
	limit, ok := h.number("kernel.keys.maxkeys")
	if !ok {
		r.Found = "the kernel has none"
		return r
	}
	used := h.used.keys()
	r.Found = fmt.Sprintf("%d for each user, in use %d", limit, used)
	if o, ok := tried[trialKeyring]; ok && !o.ok() {
		r.OK, r.Found = No, r.Found+", a new keyring is refused: "+o.Error
		r.Cost = "a node needs a keyring, so that pods do not have that of your session"
		r.Remedy = Remedy{
			User:  "remove some of your keys: 'cat /proc/keys' lists them, 'keyctl clear @u' empties your user keyring",
			Admin: "sysctl -w kernel.keys.maxkeys=5000 kernel.keys.maxbytes=1000000   # and keep it in /etc/sysctl.d/90-berth.conf",
		}
	}
	return r
}

func checkMemlock(h *Host) Result {
	r := Result{Name: "locked-memory", Title: "locked memory", Level: Optional, OK: Yes}
	_, hard, err := h.kernel.Limit(unix.RLIMIT_MEMLOCK)
	if err != nil {
		r.OK, r.Found = Unknown, err.Error()
		return r
	}
	r.Found = limitText(hard)
	if hard < math.MaxUint64 {
		r.Found = Bytes(hard)
		r.OK, r.Cost = Degraded, "RDMA (InfiniBand) and io_uring in pods can fail to register memory"
		r.Remedy = limitRemedy(h, "memlock", "LimitMEMLOCK", "infinity")
	}
	return r
}

func (h *Host) inJob() bool { return h.getenv("SLURM_JOB_ID") != "" }

// limitRemedy returns the remedy that raises a resource limit at its origin: slurmd
// inside a job, PAM elsewhere.
func limitRemedy(h *Host, pam, unit, value string) Remedy {
	if h.inJob() {
		return Remedy{Admin: dropIn("slurmd.service", unit+"="+value) + " && systemctl restart slurmd   # with PropagateResourceLimits=NONE in slurm.conf"}
	}
	if value == "infinity" {
		value = "unlimited"
	}
	return Remedy{Admin: fmt.Sprintf("printf '* soft %[1]s %[2]s\\n* hard %[1]s %[2]s\\n' > /etc/security/limits.d/90-berth-%[1]s.conf", pam, value)}
}

// dropIn returns the command that adds a line to the [Service] section of a systemd
// unit.
func dropIn(unit, line string) string {
	dir := "/etc/systemd/system/" + unit + ".d"
	name, _, _ := strings.Cut(line, "=") // a file for each, so that none overwrites another
	return fmt.Sprintf("mkdir -p %[1]s && printf '[Service]\\n%[2]s\\n' > %[1]s/90-berth-%[3]s.conf && systemctl daemon-reload", dir, line, strings.ToLower(name))
}

func limitText(n uint64) string {
	if n == math.MaxUint64 {
		return "unlimited"
	}
	return strconv.FormatUint(n, 10)
}
