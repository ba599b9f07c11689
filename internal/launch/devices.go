package launch

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/cluster"
	"berth.dev/berth/internal/base/exitcode"
	"berth.dev/berth/internal/base/probe"
	"berth.dev/berth/internal/job/slurm"
	"berth.dev/berth/internal/node/devices"
)

// findDevices finds the devices that Slurm gave this node's task. It warns about
// devices that pods cannot use.
func (n *node) findDevices() error {
	var job slurm.Job
	if n.allocation != nil {
		job = n.allocation.Job
	}
	wish, err := deviceWish(n.Getenv, job, n.allocation != nil, n.Spec.Devices)
	if err != nil {
		return err
	}
	wish.Part, wish.Parts = n.localConfig.Index, n.Spec.NodesPerHost
	wish.Hook = filepath.Join(n.host.libexec, "berth-cdi-hook")
	if n.host.devices, err = (devices.Machine{}).Find(wish); err != nil {
		return exitcode.Wrap(exitcode.Internal, err)
	}
	for _, notice := range n.host.devices.Notices {
		n.Log.Warn(notice)
	}
	if warning := lockedMemory(wish.Requests); warning != "" {
		n.Log.Warn(warning)
	}
	return nil
}

// FindDevices returns the devices that a node would offer on this machine: the
// GPUs of the job, or of the machine outside a job, and the devices that options
// name.
func FindDevices(getenv func(string) string, options []string) (devices.Found, error) {
	job, inJob := slurm.FromEnv(getenv)
	wish, err := deviceWish(getenv, job, inJob, options)
	if err != nil {
		return devices.Found{}, err
	}
	return devices.Machine{}.Find(wish)
}

// deviceWish returns the devices that a node should offer, from the environment,
// the job and the options.
func deviceWish(getenv func(string) string, job slurm.Job, inJob bool, options []string) (devices.Wish, error) {
	wish := devices.Wish{GPUs: devices.FromEnv(getenv, inJob, job.GPUs), LibraryPath: getenv("LD_LIBRARY_PATH")}
	for _, value := range options {
		request, err := cluster.ParseDevice(value)
		if err != nil {
			return wish, exitcode.Wrap(exitcode.Usage, err)
		}
		wish.Requests = append(wish.Requests, request)
	}
	return wish, nil
}

// lockedMemory raises the limit of locked memory to the job's maximum. It returns
// a warning if that is too little for a fast network, whose buffers are locked.
func lockedMemory(requests []cluster.DeviceRequest) string {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Max == unix.RLIM_INFINITY && limit.Cur == limit.Max {
		return ""
	}
	limit.Cur = limit.Max
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)
	rdma := slices.ContainsFunc(requests, func(request cluster.DeviceRequest) bool {
		return slices.ContainsFunc(request.Paths, func(path string) bool { return strings.HasPrefix(path, "/dev/infiniband") })
	})
	if !rdma || limit.Max == unix.RLIM_INFINITY {
		return ""
	}
	return fmt.Sprintf("pods may lock only %s of memory, which is little for InfiniBand; an administrator can set PropagateResourceLimitsExcept=MEMLOCK in slurm.conf and LimitMEMLOCK=infinity in slurmd's unit",
		probe.Bytes(limit.Max))
}
