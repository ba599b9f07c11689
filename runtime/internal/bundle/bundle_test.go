package bundle

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
)

var update = flag.Bool("update", false, "write the golden files again")

func ptr[T any](v T) *T { return &v }

// burstable returns a container as CRI requests it, with an example of each setting that
// a node may have to change.
func burstable() *specs.Spec {
	return &specs.Spec{
		Version: specs.Version,
		Process: &specs.Process{
			User:        specs.User{UID: 1000, GID: 3000, AdditionalGids: []uint32{3000, 4000}},
			Args:        []string{"/bin/true"},
			Env:         []string{"PATH=/bin", "http_proxy=http://mine:1"},
			Cwd:         "/",
			OOMScoreAdj: ptr(600),
		},
		Root: &specs.Root{Path: "rootfs"},
		Mounts: []specs.Mount{
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "gid=5", "mode=0620"}},
			{Destination: "/cache", Type: "tmpfs", Source: "tmpfs", Options: []string{"uid=1000", "gid=3000"}},
			{Destination: "/software", Type: "bind", Source: "/software", Options: []string{"rbind", "rprivate", "rw"}},
		},
		Annotations: map[string]string{containerType: "container"},
		Linux: &specs.Linux{
			CgroupsPath: "/kubepods/burstable/pod1/one",
			MaskedPaths: []string{"/proc/kcore"},
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace, Path: "/run/netns/1"}},
			Devices:     []specs.LinuxDevice{{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229, UID: ptr(uint32(1000)), GID: ptr(uint32(0))}},
			Resources: &specs.LinuxResources{
				Memory:  &specs.LinuxMemory{Limit: ptr(int64(200 << 20)), Swap: ptr(int64(200 << 20))},
				CPU:     &specs.LinuxCPU{Shares: ptr(uint64(512)), Quota: ptr(int64(50000)), Period: ptr(uint64(100000)), Cpus: "0-1"},
				Pids:    &specs.LinuxPids{Limit: ptr(int64(100))},
				Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
				Unified: map[string]string{"memory.high": "1", "cpu.idle": "1"},
			},
		},
	}
}

func TestContainersSeeLimits(t *testing.T) {
	another := filepath.Join(t.TempDir(), "pid")
	if err := os.Symlink("pid:[1]", another); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*specs.Spec)
		node   Node
		want   bool
	}{
		"container":           {func(*specs.Spec) {}, Node{}, true},
		"shared PIDs":         {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = another }, Node{}, true},
		"hostPID":             {func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/proc/self/ns/pid" }, Node{}, false},
		"no PID namespace":    {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[1:] }, Node{}, false},
		"privileged":          {func(s *specs.Spec) { s.Linux.MaskedPaths = nil }, Node{}, false},
		"sandbox":             {func(s *specs.Spec) { s.Annotations[containerType] = containerTypeSandbox }, Node{}, false},
		"with control groups": {func(*specs.Spec) {}, Node{Controllers: []string{"cpu", "memory"}}, false},
	} {
		spec := burstable()
		c.change(spec)
		if got := c.node.patch(spec).SeesLimits; got != c.want {
			t.Errorf("%s: sees limits: %v, want %v", name, got, c.want)
		}
	}
}

func TestCover(t *testing.T) {
	bind := func(path string) specs.Mount {
		return specs.Mount{Destination: path, Type: "bind", Source: "/view" + path}
	}
	views := []specs.Mount{bind("/sys/fs/cgroup"), bind("/proc/meminfo")}
	proc, cgroup := specs.Mount{Destination: "/proc", Type: "proc"}, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup"}
	volume := specs.Mount{Destination: "/sys/fs/cgroup", Type: "bind", Source: "/sys/fs/cgroup"}
	data := specs.Mount{Destination: "/process", Type: "bind", Source: "/data"}
	for name, c := range map[string]struct{ before, want []specs.Mount }{
		"usual":                {[]specs.Mount{proc, cgroup, data}, []specs.Mount{proc, views[0], data, views[1]}},
		"no cgroup":            {[]specs.Mount{proc}, []specs.Mount{proc, views[1]}},
		"a volume over both":   {[]specs.Mount{proc, cgroup, volume, bind("/proc")}, []specs.Mount{proc, cgroup, volume, bind("/proc")}},
		"a volume in a cgroup": {[]specs.Mount{proc, cgroup, bind("/sys/fs/cgroup/a")}, []specs.Mount{proc, cgroup, bind("/sys/fs/cgroup/a"), views[1]}},
	} {
		spec := specs.Spec{Mounts: slices.Clone(c.before)}
		cover(&spec, views)
		if !reflect.DeepEqual(spec.Mounts, c.want) {
			t.Errorf("%s: %+v", name, spec.Mounts)
		}
	}
}

func TestAdaptGolden(t *testing.T) {
	for name, node := range map[string]Node{
		"no-cgroups": {Proxy: []string{"HTTP_PROXY=http://site:3128", "HTTPS_PROXY=http://site:3128", "no_proxy=10.0.0.0/8"}},
		"one-uid":    {OneUID: true, OOMScoreAdj: 900},
		"no-memory-controller": {
			Controllers: []string{},
		},
		"systemd-default": {Controllers: []string{"memory", "pids"}},
		"delegated":       {Controllers: []string{"cpu", "cpuset", "io", "memory", "pids"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			before, err := json.Marshal(burstable())
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, configFile)
			if err := os.WriteFile(path, before, 0o600); err != nil {
				t.Fatal(err)
			}
			c, err := node.Adapt(dir, func(Container) []specs.Mount { return nil })
			if err != nil {
				t.Fatal(err)
			}
			var spec specs.Spec
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, &spec); err != nil {
				t.Fatal(err)
			}
			got, err := json.MarshalIndent(map[string]any{"container": c, "spec": spec}, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, '\n')
			golden := filepath.Join("testdata", name+".json")
			if *update {
				if err := os.WriteFile(golden, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("differs from %s (run with -update if that is meant):\n%s", golden, got)
			}
		})
	}
}

func TestSandboxStaysLow(t *testing.T) {
	spec := burstable()
	spec.Annotations[containerType] = containerTypeSandbox
	Node{OOMScoreAdj: 3, Proxy: []string{"HTTP_PROXY=x"}}.patch(spec)
	if got := *spec.Process.OOMScoreAdj; got != 3 {
		t.Errorf("oom_score_adj of the pause process is %d, want the shim's own 3", got)
	}
	if slices.Contains(spec.Process.Env, "HTTP_PROXY=x") {
		t.Error("the pause process got the proxy")
	}
}

func TestOOMScoreAdjOrdersPodsAboveBerth(t *testing.T) {
	node := Node{OOMScoreAdj: 1}
	guaranteed, burst, best := *node.oomScoreAdj(ptr(-997), false), *node.oomScoreAdj(ptr(500), false), *node.oomScoreAdj(ptr(1000), false)
	if !(1 < guaranteed && guaranteed < burst && burst < best && best <= 1000) {
		t.Errorf("guaranteed %d, burstable %d, best effort %d", guaranteed, burst, best)
	}
	if got := *node.oomScoreAdj(nil, false); got != guaranteed {
		t.Errorf("without a value: %d", got)
	}
}

func TestAdaptRefusesInvalidFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := (Node{}).Adapt(dir, nil); err == nil {
		t.Error("no file: no error")
	}
	if err := os.WriteFile(filepath.Join(dir, configFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (Node{}).Adapt(dir, nil); err == nil {
		t.Error("half a file: no error")
	}
}

func TestDelegated(t *testing.T) {
	root := t.TempDir()
	if got := delegated(root); got != nil {
		t.Errorf("empty directory: %v", got)
	}
	for _, name := range []string{"cgroup.procs", "cgroup.controllers"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := delegated(root); got == nil || len(got) != 0 {
		t.Errorf("delegated without controllers: %v, want an empty list", got)
	}
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), []byte("cpu memory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := delegated(root); !slices.Equal(got, []string{"cpu", "memory"}) {
		t.Errorf("got %v", got)
	}
}

func TestOneID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gid_map")
	for text, want := range map[string]bool{
		"         0       1001          1\n":                               true,
		"         0       1001          1\n         1     100000  65536\n": false,
		"         0          0 4294967295\n":                               false,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := oneID(path); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestMemoryVolumes(t *testing.T) {
	got := memoryVolumes([]specs.Mount{
		{Destination: "/dev/shm", Type: "bind", Source: "/run/berth/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm"},
		{Destination: "/fast", Type: "bind", Source: "/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/fast"},
		{Destination: "/read", Type: "bind", Source: "/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/read", Options: []string{"ro"}},
		{Destination: "/dev/shm", Type: "bind", Source: "/dev/shm"},
		{Destination: "/tmp", Type: "bind", Source: "/tmp"},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
	})
	want := []string{
		"/run/berth/containerd/io.containerd.grpc.v1.cri/sandboxes/1/shm",
		"/var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/fast",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestProxySettings(t *testing.T) {
	got := proxySettings([]string{"PATH=/bin", "HTTP_PROXY=a", "https_proxy=b", "NO_PROXY=", "no_proxy=c"})
	if want := []string{"HTTP_PROXY=a", "https_proxy=b", "no_proxy=c"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPodsWithoutFastPath(t *testing.T) {
	spec := func(value string, actions ...specs.LinuxSeccompAction) *specs.Spec {
		s := &specs.Spec{
			Annotations: map[string]string{containerType: containerTypeSandbox, fastPathAnnotation: value},
			Linux:       &specs.Linux{Seccomp: &specs.LinuxSeccomp{}},
		}
		if value == "" {
			s.Annotations = nil // a container, not the first
		}
		for _, action := range actions {
			s.Linux.Seccomp.Syscalls = append(s.Linux.Seccomp.Syscalls, specs.LinuxSyscall{Action: action})
		}
		return s
	}
	for name, c := range map[string]struct {
		spec             *specs.Spec
		overlay, listens bool
	}{
		"nobody asked":               {spec("auto"), false, false},
		"the annotation":             {spec("off"), true, false},
		"a profile":                  {spec("", specs.ActErrno, specs.ActAllow), false, false},
		"a profile with a listener":  {spec("", specs.ActErrno, specs.ActNotify), false, true},
		"no profile, no annotations": {&specs.Spec{Linux: &specs.Linux{}}, false, false},
	} {
		if got := (Node{}).patch(c.spec); got.Overlay != c.overlay || got.Listens != c.listens {
			t.Errorf("%s: overlay %v, listens %v", name, got.Overlay, got.Listens)
		}
	}
	for value, want := range map[string]bool{"": false, "auto": false, "off": true} {
		s := spec("auto")
		s.Annotations[sysinfoAnnotation] = value
		if got := (Node{}).patch(s).OwnListener; got != want {
			t.Errorf("annotation %s=%q: a listener of its own %v", sysinfoAnnotation, value, got)
		}
	}
}
