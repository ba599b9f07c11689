package devices

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"berth.dev/berth/internal/base/cluster"
)

// The machines of these tests are folders, where device files are named pipes and drivers
// are empty files. The tests need no GPU.

type fake struct {
	t    *testing.T
	root string
}

func newFake(t *testing.T) fake { return fake{t, t.TempDir()} }

func (f fake) make(path string, make func(string) error) {
	f.t.Helper()
	path = filepath.Join(f.root, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := make(path); err != nil {
		f.t.Fatal(err)
	}
}

func (f fake) devices(paths ...string) {
	for _, path := range paths {
		f.make(path, func(p string) error { return unix.Mkfifo(p, 0o666) })
	}
}

func (f fake) file(path, content string) {
	f.make(path, func(p string) error { return os.WriteFile(p, []byte(content), 0o755) })
}

func (f fake) link(path, target string) {
	f.make(path, func(p string) error { return os.Symlink(target, p) })
}

func (f fake) find(wish Wish) Found {
	f.t.Helper()
	wish.Hook = "/libexec/berth-cdi-hook"
	found, err := Machine{Root: f.root}.Find(wish)
	if err != nil {
		f.t.Fatal(err)
	}
	return found
}

func (f fake) spec(found Found, name string) cdi.Spec {
	f.t.Helper()
	var spec cdi.Spec
	if err := json.Unmarshal(found.Specs[name], &spec); err != nil {
		f.t.Fatalf("%s: %v", name, err)
	}
	return spec
}

// units returns the ids of a resource's units.
func units(found Found, resource string) []string {
	var ids []string
	for _, r := range found.Resources {
		if r.Name == resource {
			for _, unit := range r.Units {
				ids = append(ids, unit.ID)
			}
		}
	}
	return ids
}

func env(values map[string]string) func(string) string {
	return func(name string) string { return values[name] }
}

// nvidia returns a machine with four GPUs and a driver as Debian installs it. The order
// of the GPUs on the bus differs from the numbers of their device files.
func nvidia(t *testing.T) fake {
	f := newFake(t)
	f.devices("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia3", "/dev/nvidiactl", "/dev/nvidia-uvm")
	for bus, minor := range map[string]string{"0000:01:00.0": "1", "0000:0A:00.0": "0", "0000:21:00.0": "2", "0000:41:00.0": "3"} {
		f.file("/proc/driver/nvidia/gpus/"+bus+"/information", "Model: \t\t Fake\nGPU UUID: \t GPU-"+minor+"7-x\nDevice Minor: \t "+minor+"\n")
	}
	const lib = "/usr/lib/x86_64-linux-gnu"
	f.file(lib+"/nvidia/current/libcuda.so.580.159.04", "")
	f.file(lib+"/nvidia/current/libnvidia-ml.so.580.159.04", "")
	f.file(lib+"/nvidia/current/libnvidia-ptxjitcompiler.so.580.159.04", "")
	f.file(lib+"/nvidia/current/libnvidia-ml.so.470.1", "")
	f.link(lib+"/nvidia/current/libnvidia-ptxjitcompiler.so.1", "libnvidia-ptxjitcompiler.so.580.159.04")
	f.link(lib+"/libcuda.so.1", "nvidia/current/libcuda.so.580.159.04")
	f.link(lib+"/libcuda.so", "libcuda.so.1")
	f.link(lib+"/libnvidia-ml.so.1", "nvidia/current/libnvidia-ml.so.580.159.04")
	f.file(lib+"/libc.so.6", "")
	f.file("/etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
	f.file("/etc/ld.so.conf.d/a.conf", "# comment\n"+lib+" # more\n")
	f.file("/usr/bin/nvidia-smi", "")
	return f
}

func TestJobGPUs(t *testing.T) {
	f := nvidia(t)
	for _, test := range []struct {
		name    string
		env     map[string]string
		inJob   bool
		numbers []string
		want    []string
		notices int
	}{
		{name: "no job: all, by bus", want: []string{"1", "0", "2", "3"}},
		{name: "no job: by position", env: map[string]string{"CUDA_VISIBLE_DEVICES": "0,2"}, want: []string{"1", "2"}},
		{name: "no job: by UUID", env: map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-37"}, want: []string{"3"}},
		{name: "no job: none", env: map[string]string{"CUDA_VISIBLE_DEVICES": "NoDevFiles"}},
		{name: "no job: up to a wrong one", env: map[string]string{"CUDA_VISIBLE_DEVICES": "3,-1,0"}, want: []string{"3"}},
		{name: "job without", inJob: true},
		{name: "job: Slurm's numbers, not the visible ones", env: map[string]string{"CUDA_VISIBLE_DEVICES": "0,1"}, inJob: true, numbers: []string{"2", "3"}, want: []string{"2", "3"}},
		{name: "job: what is visible", env: map[string]string{"CUDA_VISIBLE_DEVICES": "1"}, inJob: true, want: []string{"0"}},
		{name: "job: one is missing", inJob: true, numbers: []string{"3", "7"}, want: []string{"3"}, notices: 1},
		{name: "part of a GPU", env: map[string]string{"CUDA_VISIBLE_DEVICES": "MIG-1,GPU-07-x"}, want: []string{"0"}, notices: 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			f.t = t
			found := f.find(Wish{GPUs: FromEnv(env(test.env), test.inJob, test.numbers)})
			if got := units(found, "nvidia.com/gpu"); !slices.Equal(got, test.want) {
				t.Errorf("units %q, want %q", got, test.want)
			}
			if len(found.Notices) != test.notices {
				t.Errorf("notices %q, want %d", found.Notices, test.notices)
			}
		})
	}
}

func TestNodesOnOneMachineShareGPUs(t *testing.T) {
	f := nvidia(t)
	var all []string
	for part := range 3 {
		found := f.find(Wish{GPUs: GPUs{Numbers: []string{"0", "1", "2", "3"}, Job: true}, Part: part, Parts: 3})
		all = append(all, strings.Join(units(found, "nvidia.com/gpu"), "+"))
	}
	if want := []string{"0+3", "1", "2"}; !slices.Equal(all, want) {
		t.Errorf("%q, want %q", all, want)
	}
}

func TestNVIDIADriver(t *testing.T) {
	f := nvidia(t)
	spec := f.spec(f.find(Wish{}), "berth-nvidia.json")
	if spec.Kind != "berth.dev/nvidia" || len(spec.Devices) != 4 {
		t.Fatalf("%+v", spec)
	}
	lib := f.root + "/usr/lib/x86_64-linux-gnu/nvidia/current/"
	var mounts []string
	for _, m := range spec.ContainerEdits.Mounts {
		mounts = append(mounts, strings.TrimPrefix(m.HostPath, lib)+" -> "+m.ContainerPath)
	}
	if want := []string{
		"libcuda.so.580.159.04 -> /usr/local/nvidia/lib64/libcuda.so.580.159.04",
		"libnvidia-ml.so.580.159.04 -> /usr/local/nvidia/lib64/libnvidia-ml.so.580.159.04",
		"libnvidia-ptxjitcompiler.so.580.159.04 -> /usr/local/nvidia/lib64/libnvidia-ptxjitcompiler.so.580.159.04",
		f.root + "/usr/bin/nvidia-smi -> /usr/bin/nvidia-smi",
	}; !slices.Equal(mounts, want) {
		t.Errorf("mounts %q, want %q", mounts, want)
	}
	var nodes []string
	for _, n := range spec.ContainerEdits.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	if want := []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}; !slices.Equal(nodes, want) {
		t.Errorf("nodes %q, want %q", nodes, want)
	}
	if want := []string{
		"berth-cdi-hook", "libraries", "--folder", "/usr/local/nvidia/lib64",
		"libcuda.so.1=libcuda.so.580.159.04",
		"libcuda.so.580.159.04=libcuda.so.580.159.04",
		"libcuda.so=libcuda.so.580.159.04",
		"libnvidia-ml.so.1=libnvidia-ml.so.580.159.04",
		"libnvidia-ml.so.580.159.04=libnvidia-ml.so.580.159.04",
		"libnvidia-ptxjitcompiler.so.1=libnvidia-ptxjitcompiler.so.580.159.04",
		"libnvidia-ptxjitcompiler.so.580.159.04=libnvidia-ptxjitcompiler.so.580.159.04",
	}; !slices.Equal(spec.ContainerEdits.Hooks[0].Args, want) {
		t.Errorf("hook %q, want %q", spec.ContainerEdits.Hooks[0].Args, want)
	}
}

// A separate folder, as clouds install the driver, and without links.
func TestDriverElsewhere(t *testing.T) {
	f := newFake(t)
	f.devices("/dev/nvidia0")
	f.file("/opt/driver/lib/libcuda.so.550.1.2", "")
	f.link("/opt/driver/lib/libcuda.so.1", "libcuda.so.550.1.2")
	f.file("/opt/driver/lib/libnvidia-ml.so.550.1.2", "")
	f.file("/opt/driver/bin/nvidia-smi", "")
	f.file("/usr/lib64/libcuda.so.1", "a stub, which has no version")
	spec := f.spec(f.find(Wish{LibraryPath: "relative::/opt/driver/lib"}), "berth-nvidia.json")
	if got := len(spec.ContainerEdits.Mounts); got != 3 {
		t.Errorf("%d mounts, want 3", got)
	}
	if args := spec.ContainerEdits.Hooks[0].Args; !slices.Contains(args, "libnvidia-ml.so.1=libnvidia-ml.so.550.1.2") {
		t.Errorf("hook %q", args)
	}
}

func TestNoDriver(t *testing.T) {
	f := newFake(t)
	f.devices("/dev/nvidia0", "/dev/nvidiactl")
	found := f.find(Wish{})
	if len(units(found, "nvidia.com/gpu")) != 1 || len(found.Notices) != 1 || !strings.Contains(found.Notices[0], "libcuda.so.1") {
		t.Errorf("%+v", found)
	}
}

func TestAMD(t *testing.T) {
	f := newFake(t)
	f.devices("/dev/kfd", "/dev/dri/renderD128", "/dev/dri/renderD129", "/dev/dri/card0", "/dev/dri/card1")
	f.file("/sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 8\nsimd_count 0\ndrm_render_minor 0\n")
	f.file("/sys/class/kfd/kfd/topology/nodes/1/properties", "simd_count 4\nlocation_id 768\ndrm_render_minor 128\n")
	f.file("/sys/class/kfd/kfd/topology/nodes/2/properties", "simd_count 4\nlocation_id 1024\ndrm_render_minor 129\n")
	f.file("/sys/class/drm/renderD129/device/drm/card1/x", "")
	for _, wish := range []GPUs{{Numbers: []string{"1"}, Job: true}, {Numbers: []string{"129"}, Job: true}, {Visible: []string{"1"}}} {
		found := f.find(Wish{GPUs: wish})
		spec := f.spec(found, "berth-amd.json")
		if got := units(found, "amd.com/gpu"); !slices.Equal(got, []string{"129"}) {
			t.Errorf("%+v: units %q", wish, got)
		}
		var nodes []string
		for _, n := range append(spec.ContainerEdits.DeviceNodes, spec.Devices[0].ContainerEdits.DeviceNodes...) {
			nodes = append(nodes, n.Path)
		}
		if want := []string{"/dev/kfd", "/dev/dri/renderD129", "/dev/dri/card1"}; !slices.Equal(nodes, want) {
			t.Errorf("%+v: nodes %q, want %q", wish, nodes, want)
		}
	}
}

func TestRequestedDevices(t *testing.T) {
	f := newFake(t)
	f.devices("/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm", "/dev/real")
	f.file("/dev/infiniband/README", "no device")
	f.link("/dev/card", "real")
	var requests []cluster.DeviceRequest
	for _, value := range []string{"rdma/hca:2=/dev/infiniband", "/dev/card", "site.org/x=/dev/card", "site.org/x=/dev/real,/dev/none", "/dev/none", "vendor.com/net=nic0"} {
		request, err := cluster.ParseDevice(value)
		if err != nil {
			t.Fatal(err)
		}
		requests = append(requests, request)
	}
	found := f.find(Wish{GPUs: GPUs{Job: true}, Requests: requests})
	if want := []cluster.Resource{
		{Name: "rdma/hca", Units: []cluster.Unit{{ID: "0-0", CDI: "berth.dev/device=0"}, {ID: "0-1", CDI: "berth.dev/device=0"}}},
		{Name: "berth.dev/card", Units: []cluster.Unit{{ID: "1", CDI: "berth.dev/device=1"}}},
		{Name: "site.org/x", Units: []cluster.Unit{{ID: "2", CDI: "berth.dev/device=2"}, {ID: "3", CDI: "berth.dev/device=3"}}},
		{Name: "vendor.com/net", Units: []cluster.Unit{{ID: "5", CDI: "vendor.com/net=nic0"}}},
	}; !reflect.DeepEqual(found.Resources, want) {
		t.Errorf("%+v, want %+v", found.Resources, want)
	}
	if len(found.Notices) != 3 { // /dev/none twice, and the resource that is nothing else
		t.Errorf("notices %q", found.Notices)
	}
	spec := f.spec(found, "berth-device.json")
	if got := spec.Devices[0].ContainerEdits.DeviceNodes; len(got) != 2 {
		t.Errorf("nodes of the folder: %+v", got)
	}
	if got := spec.Devices[1].ContainerEdits.DeviceNodes[0]; got.Path != "/dev/card" || got.HostPath != f.root+"/dev/real" {
		t.Errorf("link: %+v", got)
	}
}
