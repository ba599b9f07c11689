package procstats

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	cadvisorv2 "github.com/google/cadvisor/info/v2"
)

// host is a made-up /proc and bundle directory.
type host struct {
	t             *testing.T
	proc, bundles string
	now           time.Time
}

func newHost(t *testing.T) *host {
	return &host{t: t, proc: t.TempDir(), bundles: t.TempDir(), now: time.Unix(1000, 0)}
}

func (h *host) write(path, text string) {
	h.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		h.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		h.t.Fatal(err)
	}
}

// run makes or changes a process; memory is in pages, cpu in ticks.
func (h *host) run(pid, parent int, ns string, cpu, resident, shared int) {
	h.t.Helper()
	dir := filepath.Join(h.proc, strconv.Itoa(pid))
	h.write(filepath.Join(dir, "stat"), fmt.Sprintf(
		"%d (a (b) c) S %d 1 1 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 %d 9999 %d 0 0 0\n", pid, parent, cpu, pid*7, resident))
	h.write(filepath.Join(dir, "statm"), fmt.Sprintf("5000 %d %d 1 0 9 0\n", resident, shared))
	if err := os.MkdirAll(filepath.Join(dir, "ns"), 0o755); err != nil {
		h.t.Fatal(err)
	}
	link := filepath.Join(dir, "ns", "pid")
	os.Remove(link)
	if err := os.Symlink("pid:["+ns+"]", link); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) end(pid int) {
	h.t.Helper()
	if err := os.RemoveAll(filepath.Join(h.proc, strconv.Itoa(pid))); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) container(id, sandbox, name, uid string, pid int) {
	h.t.Helper()
	kind := "container"
	if id == sandbox {
		kind = "sandbox"
	}
	h.write(filepath.Join(h.bundles, id, "config.json"), fmt.Sprintf(`{"ociVersion":"1.0.2","annotations":{%q:%q,%q:%q,%q:%q,%q:%q,%q:"ns",%q:"pod-%s"}}`,
		criType, kind, criContainer, name, criUID, uid, criSandboxID, sandbox, criNamespace, criPod, uid))
	h.write(filepath.Join(h.bundles, id, "init.pid"), strconv.Itoa(pid))
}

func (h *host) meter() *meter {
	t := newTable(h.proc)
	t.pageSize = 4096
	return &meter{
		procs: t, bundles: newBundles(h.bundles), ownNS: func() string { return "pid:[host]" },
		tmpfs: func() (uint64, map[string]uint64) { return 1 << 20, map[string]uint64{"2": 1 << 19, "gone": 1} }, now: func() time.Time { return h.now }, every: time.Second,
		counters: map[string]*counter{},
	}
}

func byID(s *snapshot) map[string]usage {
	m := map[string]usage{}
	for c, u := range s.containers {
		m[c.id] = u
	}
	return m
}

func (h *host) pass(m *meter) map[string]usage {
	h.t.Helper()
	h.now = h.now.Add(time.Second)
	s, err := m.snapshot()
	if err != nil {
		h.t.Fatal(err)
	}
	return byID(s)
}

func TestProcessesFindTheirContainers(t *testing.T) {
	h := newHost(t)
	h.run(1, 0, "host", 0, 10, 5)
	h.run(2, 1, "host", 0, 10, 5) // containerd
	// Pod a: each container has a PID namespace.
	h.run(10, 1, "host", 100, 10, 5) // shim: no part of the pod
	h.run(11, 10, "a-pause", 1, 10, 5)
	h.run(12, 10, "a-main", 2, 10, 5)
	h.run(13, 12, "a-main", 4, 10, 5)
	h.run(14, 10, "a-main", 8, 10, 5)  // kubectl exec
	h.run(15, 12, "nested", 16, 10, 5) // in a separate namespace
	h.container("a0", "a0", "", "ua", 11)
	h.container("a1", "a0", "main", "ua", 12)
	// Pod b shares one among its containers.
	h.run(20, 1, "host", 100, 10, 5)
	h.run(21, 20, "b", 1, 10, 5)
	h.run(22, 20, "b", 2, 10, 5)
	h.run(23, 22, "b", 4, 10, 5)
	h.run(24, 21, "b", 8, 10, 5) // orphan
	h.container("b0", "b0", "", "ub", 21)
	h.container("b1", "b0", "main", "ub", 22)
	// Pod c has the node's.
	h.run(30, 1, "host", 100, 10, 5)
	h.run(31, 30, "c-pause", 1, 10, 5)
	h.run(32, 30, "host", 2, 10, 5)
	h.run(33, 32, "host", 4, 10, 5)
	h.run(34, 30, "host", 8, 10, 5) // orphan
	h.container("c0", "c0", "", "uc", 31)
	h.container("c1", "c0", "main", "uc", 32)
	// A container that is only being made, and one that ended.
	h.write(filepath.Join(h.bundles, "new", "config.json"), "{}")
	h.container("old", "old", "", "uo", 99)
	// Things that are no process.
	h.write(filepath.Join(h.proc, "meminfo"), "")
	if err := os.Mkdir(filepath.Join(h.proc, "77"), 0o755); err != nil {
		t.Fatal(err)
	}

	got := h.pass(h.meter())
	for id, ticks := range map[string]int{"a0": 1, "a1": 2 + 4 + 8 + 16, "b0": 1 + 8, "b1": 2 + 4, "c0": 1 + 8, "c1": 2 + 4} {
		if u := got[id]; u.cpu != time.Duration(ticks)*10*time.Millisecond {
			t.Errorf("container %s used %v, want %d ticks", id, u.cpu, ticks)
		}
	}
	if len(got) != 6 {
		t.Errorf("measured %d containers", len(got))
	}
}

func TestMemoryCountsSharedPagesOnce(t *testing.T) {
	h := newHost(t)
	h.run(1, 0, "host", 0, 100, 60)
	h.run(10, 1, "one", 0, 100, 60)
	h.run(20, 1, "many", 0, 100, 60)
	h.run(21, 20, "many", 0, 200, 80)
	h.run(30, 1, "exact", 0, 100, 60)
	h.run(31, 30, "exact", 0, 100, 60)
	for _, pid := range []string{"30", "31"} {
		h.write(filepath.Join(h.proc, pid, "smaps_rollup"), "00-ff ---p 0 00:00 0 [rollup]\nRss: 400 kB\nPss:     280 kB\nPss_Dirty: 1 kB\n")
	}
	h.container("one", "one", "", "1", 10)
	h.container("many", "many", "", "2", 20)
	h.container("exact", "exact", "", "3", 30)
	m := h.meter()
	got := h.pass(m)
	for id, want := range map[string]uint64{"one": 100 * 4096, "many": (40 + 120 + 80) * 4096, "exact": 560 << 10} {
		if got[id].working != want {
			t.Errorf("container %s holds %d bytes, want %d", id, got[id].working, want)
		}
	}
	if pods := m.last.pods(); pods["2"].working != 240*4096+1<<19 || len(pods) != 3 {
		t.Errorf("pods: %+v", pods)
	}
	if n := m.last.node; n.working != (6*40+80)*4096+1<<20 || n.processes != 6 {
		t.Errorf("node: %+v", n)
	}
}

func TestCPUIsMonotonicAndHasRate(t *testing.T) {
	h := newHost(t)
	h.run(10, 1, "a", 100, 1, 1)
	h.run(11, 10, "a", 1000, 1, 1)
	h.container("a", "a", "", "u", 10)
	m := h.meter()
	if u := h.pass(m)["a"]; u.cpu != 1100*10*time.Millisecond || u.rate != 0 {
		t.Errorf("first pass: %+v", u)
	}
	h.end(11) // nobody waited for it
	h.run(10, 1, "a", 150, 1, 1)
	if u := h.pass(m)["a"]; u.cpu != 1100*10*time.Millisecond {
		t.Errorf("fell to %v", u.cpu)
	}
	h.run(10, 1, "a", 250, 1, 1)
	u := h.pass(m)["a"]
	if u.cpu != 1200*10*time.Millisecond {
		t.Errorf("counted %v", u.cpu)
	}
	if u.rate < 0.49 || u.rate > 0.51 { // a second of work in two
		t.Errorf("rate %v", u.rate)
	}
	before := m.last
	if _, err := m.snapshot(); err != nil || m.last != before {
		t.Errorf("a second pass at the same time (error %v)", err)
	}
}

func TestParseStatmRefusesNonsense(t *testing.T) {
	if _, _, err := parseStatm([]byte("1 x 2"), 1); err == nil {
		t.Error("parseStatm took a word")
	}
}

func TestMountinfo(t *testing.T) {
	const text = `24 1 259:1 / / rw - ext4 /dev/x rw
30 24 0:5 / /dev rw - devtmpfs udev rw
31 30 0:6 / /dev/shm rw - tmpfs tmpfs rw
32 24 0:7 / /tmp rw - tmpfs tmpfs rw
33 24 0:8 / /run rw shared:3 - tmpfs tmpfs rw
34 33 0:9 / /run/a\040b rw - tmpfs shm rw
35 33 0:9 / /run/again rw - tmpfs shm rw
`
	got := tmpfsMounts(text)
	if len(got) != 2 || got[0] != "/run" || got[1] != "/run/a b" {
		t.Errorf("tmpfsMounts = %q", got)
	}
}

func TestNetDev(t *testing.T) {
	got := parseNetDev("Inter-| Receive\n face |bytes\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 2 1 0 0 0 0 0 20 3 4 5 0 0 0 0\n")
	if len(got) != 1 || got[0].Name != "eth0" || got[0].RxBytes != 10 || got[0].TxBytes != 20 || got[0].TxErrors != 4 {
		t.Errorf("parseNetDev = %+v", got)
	}
}

func TestAdvisorAnswersAsCadvisor(t *testing.T) {
	h := newHost(t)
	h.run(10, 1, "a", 100, 0, 0)
	h.container("id", "id", "", "uid", 10)
	a := New(Config{CPUs: 3, MemoryBytes: 5 << 30, MachineID: "m", Kubelet: t.TempDir(), Images: t.TempDir(), Bundles: h.bundles})
	a.meter = h.meter()

	all, err := a.ContainerInfoV2("/", cadvisorv2.RequestOptions{Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	c, ok := all["/kubepods/poduid/id"]
	if _, pod := all["/kubepods/poduid"]; len(all) != 3 || !ok || !pod {
		t.Fatalf("answered %d entries: %v", len(all), all)
	}
	if c.Spec.Labels["io.kubernetes.container.name"] != "POD" || c.Stats[0].Memory.RSS == 0 || c.Stats[0].CpuInst == nil {
		t.Errorf("container: %+v", c)
	}
	for _, name := range []string{"/", "/system.slice", "/kubepods", "/kubepods/poduid"} {
		one, err := a.ContainerInfoV2(name, cadvisorv2.RequestOptions{})
		if _, ok := one[name]; err != nil || len(one) != 1 || !ok {
			t.Errorf("%s: %v, %v", name, one, err)
		}
	}
	if _, err := a.ContainerInfoV2("/kubepods/podx", cadvisorv2.RequestOptions{}); err == nil {
		t.Error("answered for a pod that is not there")
	}
	m, _ := a.MachineInfo()
	if m.NumCores != 3 || m.MemoryCapacity != 5<<30 {
		t.Errorf("machine: %+v", m)
	}
	root, err := a.RootFsInfo()
	if err != nil || root.Capacity == 0 || root.Device == "" {
		t.Errorf("root file system: %+v, %v", root, err)
	}
	images, _ := a.ImagesFsInfo(t.Context())
	if images.Device != root.Device {
		t.Errorf("two devices for one file system: %s, %s", images.Device, root.Device)
	}
}

func TestThisMachine(t *testing.T) {
	a := New(Config{CPUs: 1, MemoryBytes: 1 << 30, Kubelet: "/", Images: "/", Bundles: filepath.Join(t.TempDir(), "absent")})
	all, err := a.ContainerInfoV2("/", cadvisorv2.RequestOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := all["/"].Stats[0]; s.Processes.ProcessCount == 0 || s.Memory.WorkingSet == 0 {
		t.Errorf("measured %+v", s)
	}
}

func TestPodOf(t *testing.T) {
	for path, want := range map[string]string{
		"/k/pods/u1/volumes/kubernetes.io~empty-dir/m": "u1",
		"/k/pods/u1/volumes":                           "",
		"/k/pods/u1/containers/c":                      "",
		"/other/pods/u1/volumes/x":                     "",
		"/k/pods":                                      "",
	} {
		if got := podOf("/k", path); got != want {
			t.Errorf("podOf(%s) = %q, want %q", path, got, want)
		}
	}
}
