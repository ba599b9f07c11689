package task

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/utils/cpuset"

	"berth.dev/berth/runtime/internal/bundle"
	"berth.dev/berth/runtime/internal/linux"
	"berth.dev/berth/runtime/internal/memory"
	"berth.dev/berth/runtime/internal/podlink"
	"berth.dev/berth/runtime/internal/procfs"
	"berth.dev/berth/runtime/internal/resourceview"
)

// Service wraps containerd's task service. It inherits the methods that it does not define.
// Config explains most of its fields.
type Service struct {
	taskapi.TTRPCTaskService
	node      bundle.Node
	proc      procfs.FS
	publisher shim.Publisher
	log       *slog.Logger
	watcher   *memory.Watcher
	meter     *meter
	namespace string
	dir       string
	super     int
	fastPath  string
	notices   string
	cpus      binder
	views     views
	machine   Machine

	mu         sync.Mutex
	containers map[string]*container
	// memory holds the answer of sysinfo(2) for each container, in bytes.
	memory map[string]uint64
	// ownListener is true if programs of the pod install a seccomp listener themselves. A
	// process can have only one.
	ownListener bool
}

// container is the wrapper's state of one container.
type container struct {
	bundle.Container
	root procfs.Root
	// counted is the highest usage reported so far. The usage of a process started by
	// exec vanishes with the process, but a counter must not fall.
	counted procfs.Usage
	// ended is true after the exit of the first process.
	ended bool
	// cpus holds the CPUs that the container is bound to, and is empty for one
	// that is not bound.
	cpus cpuset.CPUSet
	// measured is the last measurement, valid until measuredUntil.
	measured      resourceview.Usage
	measuredUntil time.Time
}

// Config configures a Service.
type Config struct {
	Inner     taskapi.TTRPCTaskService
	Node      bundle.Node
	Proc      procfs.FS
	Publisher shim.Publisher
	Policy    memory.Policy
	// SuperPacket is the size in bytes of the largest packet that the pod's interface
	// accepts unsegmented; 0 keeps the interface's default.
	SuperPacket int
	// FastPath is the variable that names the pod of a process to berth-runc; empty
	// if the node has no fast path.
	FastPath string
	// Dir is the shim's own bundle, the first of the pod.
	Dir string
	// Notices is the folder for notices to the owners of pods.
	Notices string
	CPUs    CPUs
	Machine Machine
	Log     *slog.Logger
}

// New returns a service whose goroutines end with ctx.
func New(ctx context.Context, c Config) *Service {
	s := &Service{
		TTRPCTaskService: c.Inner,
		node:             c.Node,
		proc:             c.Proc,
		publisher:        c.Publisher,
		log:              c.Log,
		dir:              c.Dir,
		super:            c.SuperPacket,
		fastPath:         c.FastPath,
		notices:          c.Notices,
		cpus:             binder{c.CPUs, c.Log},
		views:            views{c.Dir, c.Log},
		machine:          c.Machine,
		containers:       map[string]*container{},
		memory:           map[string]uint64{},
	}
	s.namespace, _ = namespaces.Namespace(ctx)
	s.meter = &meter{service: s, ran: map[int]time.Duration{}}
	s.watcher = memory.New(c.Policy, s.meter, s.endForMemory)
	go s.watcher.Run(ctx)
	return s
}

// RegisterTTRPC makes the service a plugin of the shim's server.
func (s *Service) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s)
	return nil
}

// Create adapts the bundle's specification, then creates the container.
func (s *Service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	c := &container{}
	adapted, err := s.node.Adapt(r.Bundle, func(adapted bundle.Container) []specs.Mount {
		// If the files of the view are static, they are written now with these limits.
		c.Container, c.cpus = adapted, s.cpus.choose(r.ID, adapted)
		return s.showLimits(r.ID, c)
	})
	made := false
	defer func() {
		s.views.unmount(r.ID)
		if !made {
			s.cpus.release(r.ID)
			s.views.remove(r.ID)
			s.updateMemory(r.ID, nil)
		}
	}()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if adapted.Network != "" {
		if err := podlink.IgnoreRedirects(adapted.Network); err != nil {
			return nil, errgrpc.ToGRPC(err)
		}
	}
	if adapted.Network != "" && s.super > 0 {
		if err := podlink.LimitSuperPackets(adapted.Network, s.super); err != nil {
			s.log.Info("the network between nodes is slower for this pod", "container", r.ID, "error", err)
		}
	}
	runc := ""
	if s.fastPath != "" {
		s.takeFastPath(r.ID, adapted)
		runc = "berth-runc"
	}
	if r.Options, err = runcOptions(runc); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	s.mu.Lock()
	s.ownListener = s.ownListener || adapted.OwnListener
	s.mu.Unlock()
	s.updateMemory(r.ID, &container{Container: adapted})
	response, err := s.TTRPCTaskService.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	made = true
	if s.node.Controllers == nil {
		if err := dropWatches(); err != nil {
			s.log.Warn("containers keep inotify instances that they do not need", "container", r.ID, "error", err)
		}
	}
	if err := s.leaveNotices(r.ID, adapted); err != nil {
		s.log.Warn("the pod's owner is not told what was changed", "container", r.ID, "error", err)
	}
	if len(adapted.Ignored) > 0 {
		s.log.Info("settings that this node cannot honour", "container", r.ID, "settings", adapted.Ignored)
	}
	s.mu.Lock()
	c.Container, c.root = adapted, procfs.Root{PID: int(response.Pid)}
	s.mu.Unlock()
	// Bind the container now: runc has reset the affinity, and the first process waits to
	// be started.
	s.cpus.bind(r.ID, c.root.PID, c.cpus)
	if c.root.MountNamespace, err = s.proc.MountNamespace(c.root.PID); err != nil {
		// The process has ended already; its exit is on the way.
		s.log.Debug("container ended at once", "container", r.ID, "error", err)
	}
	s.mu.Lock()
	s.containers[r.ID] = c
	s.noteNamespaces()
	s.mu.Unlock()
	s.meter.stale.Store(true)
	s.limit(r.ID, c, adapted.MemoryLimit)
	return response, nil
}

// Start starts what Create or Exec has prepared.
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	defer s.meter.stale.Store(true)
	return s.TTRPCTaskService.Start(ctx, r)
}

// limit sets the memory limit of a container in bytes. The watcher enforces it unless the
// kernel does.
func (s *Service) limit(id string, c *container, bytes int64) {
	s.mu.Lock()
	c.MemoryLimit = bytes
	enforced := c.MemoryEnforced
	s.mu.Unlock()
	if !enforced {
		s.watcher.Set(id, uint64(max(bytes, 0)))
	}
}

// Delete deletes a container, and the wrapper's state of it.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	response, err := s.TTRPCTaskService.Delete(ctx, r)
	if err == nil && r.ExecID == "" {
		s.mu.Lock()
		delete(s.containers, r.ID)
		s.noteNamespaces()
		s.mu.Unlock()
		s.cpus.release(r.ID)
		s.views.remove(r.ID)
		s.updateMemory(r.ID, nil)
		s.watcher.Set(r.ID, 0)
	}
	return response, err
}

func (s *Service) container(id string) *container {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.containers[id]
}

// roots returns the roots of the containers' processes, by container ID.
func (s *Service) roots() map[string]procfs.Root {
	s.mu.Lock()
	defer s.mu.Unlock()
	roots := make(map[string]procfs.Root, len(s.containers))
	for id, c := range s.containers {
		roots[id] = c.root
	}
	return roots
}

// tree returns the live processes of each container.
func (s *Service) tree() (map[string][]linux.Stat, error) {
	return s.proc.Tree(os.Getpid(), s.roots())
}
