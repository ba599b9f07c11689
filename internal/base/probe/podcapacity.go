package probe

import (
	"fmt"
	"math"
	"path"
	"strconv"

	"golang.org/x/sys/unix"
)

// MaxPods is the largest number of pods that a node offers. The node's range of pod
// addresses is larger: 510 in IPv4.
const MaxPods = 250

const (
	// podThreads is the number of threads of a pod whose program has one: 8 of the
	// shim, measured with 240 pods, 2 of pause and the program, and one for runc.
	podThreads = 11
	// nodeThreads is the number of threads of a node with a control plane and no
	// pods, some of them for the programs that start pods.
	nodeThreads = 200
	// podWatchers is the number of inotify instances of a pod with one container where
	// control groups are delegated: a shim watches memory.events of pause and of each
	// container, so that a program that ran out of memory is reported as OOMKilled
	// (containerd 2.3, internal/oom). Without delegation it drops these watches.
	podWatchers = 2
	// countBelow is a factor. If a limit is larger than countBelow times the need of the
	// nodes, the use by other programs is not counted.
	countBelow = 8
)

// PodCapacity holds the number of pods that the kernel's limits permit this user.
type PodCapacity struct {
	// Pods is at most MaxPods.
	Pods int
	// Limit names the limit that permits no more pods. It is empty if Pods is MaxPods.
	Limit string
	// Remedy raises that limit.
	Remedy Remedy
}

// PodCapacity returns the number of pods that fit on each of several nodes that the user
// starts on this machine. It does not consider memory, which the scheduler counts.
func (h *Host) PodCapacity(nodes int) PodCapacity {
	nodes = max(nodes, 1)
	capacity := PodCapacity{Pods: MaxPods}
	bound := func(free, ofNode, ofPod uint64, limit string, remedy Remedy) {
		each := free / uint64(nodes)
		pods := int(min((each-min(each, ofNode))/ofPod, MaxPods))
		if pods < capacity.Pods {
			capacity = PodCapacity{pods, limit, remedy}
		}
	}
	enough := uint64(nodes*(nodeThreads+MaxPods*podThreads)) * countBelow
	threads := h.freeThreads(enough)
	bound(threads.free, nodeThreads, podThreads, threads.limit, threads.remedy)
	if limit, ok := h.number(instancesSetting); ok && h.Cgroup().Delegated {
		found, free := fmt.Sprintf("%s is %d for each user", instancesSetting, limit), limit
		if limit < uint64(nodes*(HeadWatchers+MaxPods*podWatchers))*countBelow {
			used := h.used.inotifyInstances()
			found, free = fmt.Sprintf("%s, in use %d", found, used), limit-min(limit, used)
		}
		// A pod also starts without its watches, so they refuse no run.
		bound(max(free, uint64(nodes)*(HeadWatchers+podWatchers)), HeadWatchers, podWatchers, found, Remedy{Admin: moreInstances})
	}
	for _, need := range namespaceNeeds {
		if need.perPod == 0 {
			continue
		}
		name := "user.max_" + need.kind + "_namespaces"
		limit, ok := h.number(name)
		if !ok {
			continue
		}
		found, free := fmt.Sprintf("%s is %d for each user", name, limit), limit
		if limit < uint64(nodes*MaxPods)*need.perPod*countBelow {
			used := h.used.namespaces(need.kind)
			found, free = fmt.Sprintf("%s, in use %d", found, used), limit-min(limit, used)
		}
		bound(free, need.min/2, need.perPod, found, namespaceRemedy(name))
	}
	return capacity
}

func namespaceRemedy(name string) Remedy {
	return Remedy{Admin: fmt.Sprintf("sysctl -w %s=100000   # and keep it in /etc/sysctl.d/90-berth.conf", name)}
}

// checkPods reports the number of pods that a single node offers here, as berth run
// computes it.
func checkPods(h *Host) Result {
	r := Result{Name: "pods", Title: "pods on a node", Level: Recommended, OK: Yes}
	capacity := h.PodCapacity(1)
	r.Found = strconv.Itoa(capacity.Pods)
	if capacity.Pods < MaxPods {
		r.OK, r.Found, r.Remedy = Degraded, r.Found+": "+capacity.Limit, capacity.Remedy
		r.Cost = fmt.Sprintf("a node offers %d pods instead of %d", capacity.Pods, MaxPods)
		if capacity.Pods == 0 {
			r.Level, r.OK, r.Cost = Required, No, "no pod can start"
		}
	}
	return r
}

// threadCapacity holds the number of threads that the user can start, and the limit that
// permits no more.
type threadCapacity struct {
	free   uint64
	limit  string
	remedy Remedy
}

// freeThreads returns the smallest number of free threads that any limit leaves. It counts
// the user's own threads only if the limit for the user is not above enough.
func (h *Host) freeThreads(enough uint64) threadCapacity {
	capacity := threadCapacity{free: math.MaxUint64, limit: "no limit"}
	bound := func(limit, used uint64, found string, remedy Remedy) {
		if free := limit - min(limit, used); free < capacity.free {
			capacity = threadCapacity{free, found, remedy}
		}
	}
	ofUser := limitRemedy(h, "nproc", "LimitNPROC", "65536")
	if _, hard, err := h.kernel.Limit(unix.RLIMIT_NPROC); err == nil {
		used := uint64(0)
		if hard <= enough {
			used = h.used.ownThreads()
		}
		bound(hard, used, fmt.Sprintf("limit %s for each user, in use %d", limitText(hard), used), ofUser)
	}
	// Every other limit counts other users as well.
	for _, name := range []string{"kernel.threads-max", "kernel.pid_max"} {
		if n, ok := h.number(name); ok {
			bound(n, h.used.allThreads(), fmt.Sprintf("%s is %d for the whole machine", name, n),
				Remedy{Admin: "sysctl -w kernel.pid_max=4194304 kernel.threads-max=1000000   # and keep it in /etc/sysctl.d/90-berth.conf"})
		}
	}
	ofGroup := ofUser
	if h.inJob() {
		ofGroup = Remedy{Admin: dropIn("slurmd.service", "TasksMax=infinity")}
	}
	for _, controller := range []string{"", "pids"} {
		for _, dir := range h.cgroupDirs(controller) {
			if n, ok := h.cgroupNumber(path.Join(dir, "pids.max")); ok {
				used, _ := h.cgroupNumber(path.Join(dir, "pids.current"))
				bound(n, used, fmt.Sprintf("%s is %d", path.Join(dir, "pids.max"), n), ofGroup)
			}
		}
	}
	return capacity
}
