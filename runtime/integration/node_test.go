package integration

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	testImage = "registry.test/helper:1"
	socket    = "/run/berth/containerd/containerd.sock"
)

// node is a running containerd with clients.
type node struct {
	t       *testing.T
	scratch string
	libexec string
	log     string
	cmd     *exec.Cmd
	exited  chan error
	// snapshotter is the cluster's snapshotter; layers serves the images of
	// erofs.
	snapshotter string
	layers      *layersRole
	runtime     cri.RuntimeServiceClient
	images      cri.ImageServiceClient
}

// startNode starts containerd with the configuration that the product uses.
func startNode(t *testing.T, env ...string) *node {
	t.Helper()
	return startNodeWith(t, os.Getenv(snapshotterVariable), env...)
}

func startNodeWith(t *testing.T, snapshotter string, env ...string) *node {
	t.Helper()
	return startNodeShared(t, snapshotter, "", env...)
}

// startNodeShared starts a node with a folder of layers that several nodes share.
func startNodeShared(t *testing.T, snapshotter, cache string, env ...string) *node {
	t.Helper()
	dir, err := filepath.Abs(libexec())
	if err != nil {
		t.Fatal(err)
	}
	scratch, err := os.MkdirTemp(os.Getenv(scratchVariable), "node-")
	if err != nil {
		t.Fatal(err)
	}
	n := &node{t: t, scratch: scratch, libexec: dir, log: filepath.Join(scratch, "containerd.log"), exited: make(chan error, 1), snapshotter: snapshotter}
	n.configure(cache)
	if snapshotter == "erofs" {
		n.layers = startLayers(t, dir, filepath.Join(scratch, "layers.log"))
	}

	n.start(env...)
	t.Cleanup(n.stop)

	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	n.runtime, n.images = cri.NewRuntimeServiceClient(conn), cri.NewImageServiceClient(conn)
	return n
}

// start starts containerd and returns when it is ready.
func (n *node) start(env ...string) {
	n.t.Helper()
	notify, notifyEnd, err := os.Pipe()
	if err != nil {
		n.t.Fatal(err)
	}
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		n.t.Fatal(err)
	}
	n.cmd = exec.Command(filepath.Join(n.libexec, "containerd"), "--config", "/run/berth/containerd.toml", "--notify-fd", "3", "--log-level", "info")
	n.cmd.Env = append([]string{"PATH=" + n.libexec, "HOME=/root"}, env...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	n.cmd.ExtraFiles = []*os.File{notifyEnd}
	if n.layers != nil {
		n.cmd.Args = append(n.cmd.Args, "--layers-fd", "4")
		n.cmd.ExtraFiles = append(n.cmd.ExtraFiles, n.layers.asked)
	}
	begin := time.Now()
	if err := n.cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	notifyEnd.Close()
	log.Close()
	cmd := n.cmd
	go func() { n.exited <- cmd.Wait() }()
	lines := bufio.NewScanner(notify)
	ready := false
	for !ready && lines.Scan() {
		ready = lines.Text() == `{"event":"ready"}`
	}
	if !ready {
		text, _ := os.ReadFile(n.log)
		n.t.Fatalf("containerd ended before it was ready:\n%s", text)
	}
	n.t.Logf("containerd: exec to ready %s", time.Since(begin).Round(time.Millisecond))
	go func() { // the heartbeat
		defer notify.Close()
		for lines.Scan() {
		}
	}()
}

// configure writes containerd's configuration: the golden file of package
// containerdconf, whose paths below /run/berth are free in these namespaces.
func (n *node) configure(cache string) {
	n.t.Helper()
	golden, err := os.ReadFile("../../internal/node/containerdconf/testdata/containerd.toml")
	if err != nil {
		n.t.Fatal(err)
	}
	text := strings.NewReplacer(
		`/scratch/a \"quoted\" place`, n.scratch,
		"/opt/berth/libexec/berth", n.libexec,
		"BERTH_CPUS=0-3", "BERTH_CPUS="+affinityOf("self"), "BERTH_CPU_COUNT=4", fmt.Sprintf("BERTH_CPU_COUNT=%d", runtime.NumCPU()),
	).Replace(string(golden))
	if n.snapshotter == "erofs" {
		text = strings.NewReplacer(
			`snapshotter = "overlayfs"`, `snapshotter = "erofs"`, `snapshotter.v1.overlayfs",`, `snapshotter.v1.erofs",`, `differ = "walking"`, `differ = "erofs"`,
			"squash = false", fmt.Sprintf("squash = %t", oneUID()),
		).Replace(text)
	}
	if cache != "" {
		text = strings.NewReplacer(`cache = ""`, fmt.Sprintf("cache = %q", cache), `job = ""`, `job = "test"`, "cache_limit = 0", "cache_limit = 1000000000").Replace(text)
	}
	for _, dir := range []string{"/run/berth/cni/net.d", "/run/berth/containerd", "/run/netns"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			n.t.Fatal(err)
		}
	}
	if err := os.WriteFile("/run/berth/containerd.toml", []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	conflist, err := os.ReadFile("../../internal/node/containerdconf/testdata/ipv4.conflist")
	if err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile("/run/berth/cni/net.d/10-berth.conflist", conflist, 0o600); err != nil {
		n.t.Fatal(err)
	}
}

// stop ends containerd in order and looks for what is left.
func (n *node) stop() {
	_ = n.cmd.Process.Signal(syscall.SIGPWR)
	select {
	case <-n.exited:
	case <-time.After(20 * time.Second):
		n.t.Error("containerd does not end on SIGPWR")
		_ = n.cmd.Process.Kill()
	}
	if n.t.Failed() {
		text, _ := os.ReadFile(n.log)
		n.t.Logf("containerd.log:\n%s", text)
	}
	if n.layers != nil {
		n.unmountTrees() // as the end of a node's mount namespace does
	}
	n.noLeftovers()
	if err := os.RemoveAll("/run/berth"); err != nil {
		n.t.Error(err)
	}
}

// noLeftovers fails the test if a process or mount of a container is left.
func (n *node) noLeftovers() {
	n.t.Helper()
	var processes, mounts []string
	gone := eventually(5*time.Second, func() bool {
		processes, mounts = nil, nil
		dirs, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range dirs {
			text, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			line := strings.ReplaceAll(string(text), "\x00", " ")
			if strings.Contains(line, "shim") || strings.HasPrefix(line, "/pause") ||
				strings.HasPrefix(line, "/bin/"+helperName) || strings.HasPrefix(line, helperName) {
				processes = append(processes, filepath.Base(dir)+" "+line)
			}
		}
		text, _ := os.ReadFile("/proc/self/mountinfo")
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "/run/berth/") || strings.Contains(line, n.scratch) {
				mounts = append(mounts, line)
			}
		}
		return len(processes)+len(mounts) == 0
	})
	if !gone {
		n.t.Errorf("left behind: processes %q, mounts %q", processes, mounts)
	}
}

func eventually(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(5 * time.Millisecond) {
		if done() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// importImage runs berth-images and returns its lines.
func (n *node) importImage(args ...string) []map[string]any {
	n.t.Helper()
	cmd := exec.Command(filepath.Join(n.libexec, "berth-images"), append([]string{"import", "--socket", socket, "--snapshotter", n.snapshotter}, args...)...)
	cmd.Env = []string{"PATH=" + n.libexec}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	begin := time.Now()
	out, err := cmd.Output()
	if err != nil {
		n.t.Fatalf("import %v: %v\n%s%s", args, err, out, stderr.String())
	}
	n.t.Logf("import: exec to exit %s: %s", time.Since(begin).Round(time.Millisecond), bytes.TrimSpace(out))
	var lines []map[string]any
	for line := range bytes.Lines(out) {
		var v map[string]any
		if err := json.Unmarshal(line, &v); err != nil {
			n.t.Fatalf("output %q: %v", line, err)
		}
		lines = append(lines, v)
	}
	return lines
}

// helperImage imports this test program as an image.
func (n *node) helperImage() {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	archive := filepath.Join(n.scratch, "helper.tar")
	saveArchive(n.t, archive, "", self, helperName)
	n.importImage(testImage + "=" + archive)
}

// saveArchive writes an archive as docker save does, with one program in it.
func saveArchive(t *testing.T, path, tag, program, name string) {
	t.Helper()
	saveLayers(t, path, tag, name, programLayer(t, program, name))
}

// programLayer returns the archive of a layer with one program in it.
func programLayer(t *testing.T, program, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	addFile(t, w, &tar.Header{Name: "bin/", Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	addFile(t, w, &tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	addFile(t, w, &tar.Header{Name: "bin/" + name, Mode: 0o755, Uid: 1000, Gid: 1000}, text)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return layer.Bytes()
}

func addFile(t *testing.T, w *tar.Writer, header *tar.Header, body []byte) {
	t.Helper()
	header.Size = int64(len(body))
	if err := w.WriteHeader(header); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(body); err != nil {
		t.Fatal(err)
	}
}

// saveLayers writes an archive of layers, the lowest first. One of them has the
// program to run.
func saveLayers(t *testing.T, path, tag, program string, layers ...[]byte) {
	t.Helper()
	var ids, names []string
	for i, layer := range layers {
		ids = append(ids, fmt.Sprintf("sha256:%x", sha256.Sum256(layer)))
		names = append(names, fmt.Sprintf("layer%d.tar", i))
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/bin/" + program}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	})
	if err != nil {
		t.Fatal(err)
	}
	var tags []string
	if tag != "" {
		tags = append(tags, tag)
	}
	manifest, err := json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": tags, "Layers": names}})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	outer := tar.NewWriter(f)
	for i, layer := range layers {
		addFile(t, outer, &tar.Header{Name: names[i], Mode: 0o644}, layer)
	}
	addFile(t, outer, &tar.Header{Name: "config.json", Mode: 0o644}, config)
	addFile(t, outer, &tar.Header{Name: "manifest.json", Mode: 0o644}, manifest)
	if err := outer.Close(); err != nil {
		t.Fatal(err)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}
