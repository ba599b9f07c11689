package task

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2/stats"
	apievents "github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/events"
	_ "github.com/containerd/containerd/v2/core/runtime" // the types of specs
	"github.com/containerd/containerd/v2/pkg/namespaces"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	gorunc "github.com/containerd/go-runc"
	"github.com/containerd/typeurl/v2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"berth.dev/berth/runtime/internal/bundle"
	"berth.dev/berth/runtime/internal/memory"
	"berth.dev/berth/runtime/internal/procfs"
)

// inner replaces containerd's service. Its containers are children of the test,
// like a shim's.
type inner struct {
	taskapi.TTRPCTaskService
	mu       sync.Mutex
	pid      int
	created  *anypb.Any
	updated  *specs.LinuxResources
	executed *specs.Process
	// watches makes a watcher for each container.
	watches  bool
	watchers []*watcher
}

func (i *inner) Create(_ context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	i.created = r.Options
	if i.watches {
		w, err := startWatcher(r.Bundle)
		if err != nil {
			return nil, err
		}
		i.watchers = append(i.watchers, w)
	}
	return &taskapi.CreateTaskResponse{Pid: uint32(i.pid)}, nil
}

func (i *inner) Delete(context.Context, *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	return &taskapi.DeleteResponse{}, nil
}

func (i *inner) Update(_ context.Context, r *taskapi.UpdateTaskRequest) (*ptypes.Empty, error) {
	i.updated = &specs.LinuxResources{}
	return &ptypes.Empty{}, json.Unmarshal(r.Resources.Value, i.updated)
}

func (i *inner) Exec(_ context.Context, r *taskapi.ExecProcessRequest) (*ptypes.Empty, error) {
	i.executed = &specs.Process{}
	return &ptypes.Empty{}, json.Unmarshal(r.Spec.Value, i.executed)
}

type publisher struct{ events chan string }

func (p publisher) Publish(ctx context.Context, topic string, e events.Event) error {
	ns, _ := namespaces.Namespace(ctx)
	if oom, ok := e.(*apievents.TaskOOM); ok {
		p.events <- ns + " " + topic + " " + oom.ContainerID
	}
	return nil
}

func (p publisher) Close() error { return nil }

func newTestService(t *testing.T, node bundle.Node, pid int) (*Service, *inner, publisher) {
	t.Helper()
	in, pub := &inner{pid: pid}, publisher{make(chan string, 10)}
	ctx, cancel := context.WithCancel(namespaces.WithNamespace(context.Background(), "k8s.io"))
	t.Cleanup(cancel)
	return New(ctx, Config{
		Inner: in, Node: node, Proc: procfs.New("/proc"), Publisher: pub, Policy: memory.DefaultPolicy(),
		Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
	}), in, pub
}

// child starts a process that sleeps until it is killed.
func child(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

func create(t *testing.T, s *Service, id string, limit int64, namespaces ...specs.LinuxNamespace) {
	t.Helper()
	dir := t.TempDir()
	spec := specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{
		Namespaces: namespaces,
		Resources:  &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}},
	}}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), &taskapi.CreateTaskRequest{ID: id, Bundle: dir}); err != nil {
		t.Fatal(err)
	}
}

func update(t *testing.T, s *Service, id string, r *specs.LinuxResources) error {
	t.Helper()
	value, err := typeurl.MarshalAnyToProto(r)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Update(t.Context(), &taskapi.UpdateTaskRequest{ID: id, Resources: value})
	return err
}

func TestContainersInheritNoKeyring(t *testing.T) {
	for name, fastPath := range map[string]string{"runc": "", "berth-runc": "POD"} {
		s, in, _ := newTestService(t, bundle.Node{}, child(t).Process.Pid)
		s.fastPath = fastPath
		create(t, s, "one", 0)
		value, err := typeurl.UnmarshalAny(in.created)
		if err != nil {
			t.Fatal(err)
		}
		if o := value.(*options.Options); !o.NoNewKeyring || o.BinaryName != strings.TrimPrefix(name, "runc") {
			t.Errorf("%s: options %v", name, o)
		}
	}
}

func TestAboveLimit(t *testing.T) {
	cmd := child(t)
	s, _, pub := newTestService(t, bundle.Node{}, cmd.Process.Pid)
	create(t, s, "one", 1<<30)

	answer, err := s.Stats(t.Context(), &taskapi.StatsRequest{ID: "one"})
	if err != nil {
		t.Fatal(err)
	}
	value, err := typeurl.UnmarshalAny(answer.Stats)
	if err != nil {
		t.Fatal(err)
	}
	m := value.(*stats.Metrics)
	if m.Memory.UsageLimit != 1<<30 || m.Memory.Usage == 0 || m.Pids.Current != 1 {
		t.Errorf("statistics %+v", m)
	}
	pids, err := s.Pids(t.Context(), &taskapi.PidsRequest{ID: "one"})
	if err != nil || len(pids.Processes) != 1 || int(pids.Processes[0].Pid) != cmd.Process.Pid {
		t.Errorf("processes %v, %v", pids, err)
	}

	limit := int64(1)
	if err := update(t, s, "one", &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}); err != nil {
		t.Fatal(err)
	}
	select {
	case e := <-pub.events:
		if e != "k8s.io /tasks/oom one" {
			t.Errorf("event %q", e)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no event")
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("ended by %v", cmd.ProcessState)
	}
}

func TestDelegatedLimitsMatchKernel(t *testing.T) {
	cmd := child(t)
	s, in, _ := newTestService(t, bundle.Node{Controllers: []string{"memory"}}, cmd.Process.Pid)
	create(t, s, "one", 1)
	if got := s.watcher.Limit("one"); got != 0 {
		t.Errorf("the watcher has a limit of %d too", got)
	}
	limit, quota := int64(1<<30), int64(50000)
	err := update(t, s, "one", &specs.LinuxResources{
		Memory: &specs.LinuxMemory{Limit: &limit}, CPU: &specs.LinuxCPU{Quota: &quota},
	})
	if err != nil {
		t.Fatal(err)
	}
	if in.updated == nil || in.updated.Memory == nil || *in.updated.Memory.Limit != limit || in.updated.CPU != nil {
		t.Errorf("runc is told %+v", in.updated)
	}
}

func TestExecIsAdapted(t *testing.T) {
	cmd := child(t)
	s, in, _ := newTestService(t, bundle.Node{OneUID: true, Proxy: []string{"HTTP_PROXY=x"}}, cmd.Process.Pid)
	create(t, s, "one", 0)
	spec, err := typeurl.MarshalAnyToProto(&specs.Process{User: specs.User{UID: 5, AdditionalGids: []uint32{6}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exec(t.Context(), &taskapi.ExecProcessRequest{ID: "one", ExecID: "e", Spec: spec}); err != nil {
		t.Fatal(err)
	}
	p := in.executed
	if p.User.UID != 0 || len(p.User.AdditionalGids) != 0 || !slices.Contains(p.Env, "HTTP_PROXY=x") || *p.OOMScoreAdj != 500 {
		t.Errorf("runc is told %+v", p)
	}
}

func TestUnknownContainer(t *testing.T) {
	s, _, _ := newTestService(t, bundle.Node{}, 0)
	if _, err := s.Stats(t.Context(), &taskapi.StatsRequest{ID: "no"}); err == nil {
		t.Error("statistics: no error")
	}
	if _, err := s.Pids(t.Context(), &taskapi.PidsRequest{ID: "no"}); err == nil {
		t.Error("processes: no error")
	}
	if err := update(t, s, "no", &specs.LinuxResources{}); err == nil {
		t.Error("update: no error")
	}
}

// The note for whoever cleans up after a killed shim names live containers.
func TestNamespacesAreRecorded(t *testing.T) {
	cmd := child(t)
	s, _, _ := newTestService(t, bundle.Node{}, cmd.Process.Pid)
	exits := make(chan gorunc.Exit)
	go s.Reap(t.Context(), exits)
	noted := func() string {
		text, err := os.ReadFile(filepath.Join(s.dir, namespacesFile))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	create(t, s, "one", 0)
	own, err := s.proc.MountNamespace(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if noted() != own {
		t.Errorf("noted %q, want %q", noted(), own)
	}
	// The namespace is the test's own: nobody may be killed for it.
	if err := EndLeftovers(s.proc, s.dir); err != nil {
		t.Error(err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process is gone: %v", err)
	}
	exits <- gorunc.Exit{Pid: cmd.Process.Pid}
	exits <- gorunc.Exit{Pid: -1} // taken only when the first has been dealt with
	if noted() != "" {
		t.Errorf("after the exit: noted %q", noted())
	}
}
