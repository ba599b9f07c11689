package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"syscall"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	runctask "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/containerd/v2/version"
	gorunc "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"
	"github.com/sirupsen/logrus"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/bundle"
	"berth.dev/berth/runtime/internal/linux"
	"berth.dev/berth/runtime/internal/memory"
	"berth.dev/berth/runtime/internal/pinning"
	"berth.dev/berth/runtime/internal/procfs"
	"berth.dev/berth/runtime/internal/task"
)

// Variables that are set in containerd's configuration.
const (
	// allowanceVariable holds the memory in bytes that a container may use beyond its
	// limit before that is noticed.
	allowanceVariable = "BERTH_MEMORY_ALLOWANCE"
	// superPacketVariable holds the size in bytes of the largest packet that the interface
	// of a pod accepts unsegmented; 0 keeps the interface's default.
	superPacketVariable = "BERTH_SUPER_PACKET"
	// fastPathVariable holds the path of the socket where the fast path receives the
	// filters of containers. It is unset without a fast path.
	fastPathVariable = "BERTH_FAST_PATH"
	// podVariable holds the shim's description of the pod for berth-runc.
	podVariable = "BERTH_FAST_PATH_POD"
	// noticesVariable holds the path of the folder for notices to pods' owners.
	noticesVariable = "BERTH_NOTICES"
	// foreignOwnersVariable is set if users other than root may write to file systems
	// that machines share.
	foreignOwnersVariable = "BERTH_FOREIGN_OWNERS"
	// cpusVariable holds a list of the node's CPUs, and is empty if they are not known.
	// cpusInUseVariable holds the path of the file that records the CPUs of each
	// container.
	cpusVariable      = "BERTH_CPUS"
	cpusInUseVariable = "BERTH_CPUS_IN_USE"
	// cpuCountVariable and memoryVariable hold the number of CPUs, and of bytes of
	// memory, that pods of the node may use.
	cpuCountVariable = "BERTH_CPU_COUNT"
	memoryVariable   = "BERTH_MEMORY"
)

// newService returns the task service of the pod with this sandbox.
func newService(ctx context.Context, sandbox string, publisher shim.Publisher, stop shutdown.Service) (*task.Service, error) {
	// containerd starts shims with GOMAXPROCS=4. Each processor costs memory in every
	// pod. berth's containerd also sets GOGC=off, which suits only processes that live
	// for milliseconds: the first call of a shim, and runc.
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(100)
	if err := os.Setenv("GOMAXPROCS", "1"); err != nil {
		return nil, err
	}

	// Subscribe before the inner service does, so that stragglers are killed no later
	// than the inner service begins to wait for them.
	exits := reaper.Default.Subscribe()
	inner, err := runctask.NewTaskService(ctx, publisher, stop)
	if err != nil {
		return nil, fmt.Errorf("start task service: %w", err)
	}
	policy := memory.DefaultPolicy()
	if v, err := strconv.ParseFloat(os.Getenv(allowanceVariable), 64); err == nil && v > 0 {
		policy.Allowance = v
	}
	// Without a valid number the interface keeps its default.
	superPacket, _ := strconv.Atoi(os.Getenv(superPacketVariable))
	dir, err := os.Getwd()
	if err != nil {
		return nil, fmt.Errorf("find bundle: %w", err)
	}
	fastPath := ""
	if os.Getenv(fastPathVariable) != "" {
		fastPath = podVariable
	}
	node := bundle.Probe()
	node.GuardOwners = os.Getenv(foreignOwnersVariable) == ""
	if node.Controllers == nil {
		log.L.Logger.SetFormatter(quiet{log.L.Logger.Formatter})
	}
	s := task.New(ctx, task.Config{
		Inner:       inner,
		Node:        node,
		Proc:        procfs.New("/proc"),
		Publisher:   publisher,
		Policy:      policy,
		SuperPacket: superPacket,
		FastPath:    fastPath,
		Dir:         dir,
		Notices:     os.Getenv(noticesVariable),
		CPUs:        cpusOfNode(),
		Machine:     machine(),
		// containerd reads the shim's log through the pipe behind logrus.
		Log: slog.New(slog.NewTextHandler(log.L.Logger.Out, nil)),
	})
	gorunc.Monitor = task.Shield(reaper.Default, sandbox, s.Sysinfo)
	go s.Reap(ctx, exits)
	return s, nil
}

// cpusOfNode returns the CPUs that containers may be bound to. It returns none,
// so that nothing is bound, where the list cannot be read.
func cpusOfNode() task.CPUs {
	all, err := cpuset.Parse(os.Getenv(cpusVariable))
	if err != nil {
		return task.CPUs{}
	}
	begun := func(pid int) uint64 {
		s, _ := linux.ReadStat("/proc", pid) // 0 if it has ended
		return s.Start
	}
	alive := func(pid int, start uint64) bool { return begun(pid) == start }
	return task.CPUs{All: all, Ledger: pinning.NewLedger(os.Getenv(cpusInUseVariable), os.Getpid(), begun(os.Getpid()), alive)}
}

// machine returns the share of the machine that pods may use.
func machine() task.Machine {
	var m task.Machine
	// Without the numbers, containers see the whole machine.
	m.Memory, _ = strconv.ParseUint(os.Getenv(memoryVariable), 10, 64)
	m.Count, _ = strconv.Atoi(os.Getenv(cpuCountVariable))
	var err error
	if m.CPUs, err = pinning.Own(); err != nil || m.Memory == 0 {
		m.Count = 0
	}
	return m
}

// lifecycle starts and stops shims as containerd's own manager does, and
// after a killed shim first ends the other containers of the pod.
type lifecycle struct{ shim.Shim }

// Start starts the server of a pod with SIGINT and SIGHUP ignored, as in containerd. The
// library has caught SIGINT by now, and a child does not inherit a handler.
func (l lifecycle) Start(ctx context.Context, params *bootapi.BootstrapParams) (*bootapi.BootstrapResult, error) {
	signal.Ignore(syscall.SIGINT, syscall.SIGHUP)
	return l.Shim.Start(ctx, params)
}

// Stop ends the processes that a killed shim has left in a container, and then removes
// the container as containerd's own manager does.
func (l lifecycle) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	dir, err := os.Getwd()
	if err != nil {
		return shim.StopStatus{}, fmt.Errorf("find bundle: %w", err)
	}
	// The bundles of a namespace are siblings; we were started in one.
	if err := task.EndLeftovers(procfs.New("/proc"), filepath.Join(filepath.Dir(dir), id)); err != nil {
		log.G(ctx).WithError(err).Warn("end processes of pod")
	}
	return l.Shim.Stop(ctx, id)
}

// Info describes the runtime's features. The answer is fixed, because runc and
// the kernel's rules for unprivileged users are fixed; running runc would cost a
// process at every start of containerd. It does not offer user namespaces for
// pods, because mounts of the host's file systems cannot be id-mapped without
// root.
func (l lifecycle) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) {
	no := false
	offered, err := typeurl.MarshalAnyToProto(&features.Features{
		OCIVersionMin: "1.0.0",
		OCIVersionMax: specs.Version,
		MountOptions:  []string{"ro", "rw", "rro", "rrw"},
		Linux: &features.Linux{
			Namespaces:      []string{"cgroup", "ipc", "mount", "network", "pid", "uts"},
			MountExtensions: &features.MountExtensions{IDMap: &features.IDMap{Enabled: &no}},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("encode features: %w", err)
	}
	return &types.RuntimeInfo{
		Name:     l.Name(),
		Version:  &types.RuntimeVersion{Version: version.Version, Revision: version.Revision},
		Features: offered,
	}, nil
}

// quiet is a formatter that drops one message about each container: that the OOM events
// of its cgroup cannot be watched. It is for nodes without cgroups.
type quiet struct{ logrus.Formatter }

func (q quiet) Format(e *logrus.Entry) ([]byte, error) {
	if e.Message == "failed to watch oom events" {
		return nil, nil
	}
	return q.Formatter.Format(e)
}
