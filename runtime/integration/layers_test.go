package integration

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth.dev/berth/runtime/internal/corpus"
)

// layersRole runs the program that serves images, and keeps its descriptors, as the
// supervisor of a node does.
type layersRole struct {
	t       *testing.T
	program string
	log     string
	// asked is containerd's end of the socket for mount requests.
	asked, requests *os.File

	mu   sync.Mutex
	cmd  *exec.Cmd
	kept map[string]keptMount
	// keeping is closed when the present life can send no more messages.
	keeping chan struct{}
}

type keptMount struct {
	message []byte
	fds     []int
}

func startLayers(t *testing.T, libexec, log string) *layersRole {
	t.Helper()
	requests, asked := socketPair(t)
	l := &layersRole{t: t, program: filepath.Join(libexec, "berth-layers"), log: log, requests: requests, asked: asked, kept: map[string]keptMount{}}
	l.start()
	t.Cleanup(func() {
		if !eventually(10*time.Second, func() bool { return l.mounts() == 0 }) {
			t.Errorf("%d mounts are still kept", l.mounts())
		}
		l.kill()
		if t.Failed() {
			text, _ := os.ReadFile(log)
			t.Logf("layers.log:\n%s", text)
		}
	})
	return l
}

// mounts returns the number of kept mounts.
func (l *layersRole) mounts() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.kept)
}

// unmountTrees unmounts what containerd leaves mounted.
func (n *node) unmountTrees() {
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); strings.Contains(line, "fuse.berth") && strings.HasPrefix(fields[4], n.scratch) {
			if err := unix.Unmount(fields[4], unix.MNT_DETACH); err != nil {
				n.t.Error(err)
			}
		}
	}
}

func (n *node) removeImage(name string) {
	n.t.Helper()
	if _, err := n.images.RemoveImage(testContext(n.t), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: name}}); err != nil {
		n.t.Fatalf("remove image %s: %v", name, err)
	}
}

func socketPair(t *testing.T) (one, other *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	one, other = os.NewFile(uintptr(fds[0]), "one"), os.NewFile(uintptr(fds[1]), "other")
	t.Cleanup(func() { one.Close(); other.Close() })
	return one, other
}

// start starts one life of the role, with what was kept of earlier ones.
func (l *layersRole) start() {
	l.t.Helper()
	own, end := socketPair(l.t)
	notify, notifyEnd, err := os.Pipe()
	if err != nil {
		l.t.Fatal(err)
	}
	log, err := os.OpenFile(l.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(l.program, "--notify-fd", "3", "--requests-fd", "4", "--holder-fd", "5")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{notifyEnd, l.requests, end}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	notifyEnd.Close()
	end.Close()
	conn, err := net.FileConn(own)
	if err != nil {
		l.t.Fatal(err)
	}
	keeping := make(chan struct{})
	l.mu.Lock()
	l.cmd, l.keeping = cmd, keeping
	l.mu.Unlock()
	go func() {
		defer close(keeping)
		defer notify.Close()
		defer conn.Close()
		l.keep(conn.(*net.UnixConn))
	}()
	line, err := bufio.NewReader(notify).ReadString('\n')
	if err != nil || !strings.Contains(line, "ready") {
		l.t.Fatalf("the role that serves images says %q: %v", line, err)
	}
}

func (l *layersRole) keep(conn *net.UnixConn) {
	for _, m := range l.kept {
		if _, _, err := conn.WriteMsgUnix(m.message, unix.UnixRights(m.fds...), nil); err != nil {
			return
		}
	}
	if _, err := conn.Write([]byte("{}")); err != nil {
		return
	}
	text, rights := make([]byte, 1<<20), make([]byte, 128)
	for {
		n, r, _, _, err := conn.ReadMsgUnix(text, rights)
		if err != nil || n == 0 {
			return
		}
		var message struct{ ID string }
		if err := json.Unmarshal(text[:n], &message); err != nil {
			l.t.Error(err)
			return
		}
		l.mu.Lock()
		for _, fd := range l.kept[message.ID].fds {
			unix.Close(fd)
		}
		delete(l.kept, message.ID)
		l.mu.Unlock()
		messages, _ := unix.ParseSocketControlMessage(rights[:r])
		for _, m := range messages {
			fds, err := unix.ParseUnixRights(&m)
			if err != nil {
				l.t.Error(err)
			}
			for _, fd := range fds {
				unix.CloseOnExec(fd)
			}
			l.mu.Lock()
			l.kept[message.ID] = keptMount{bytes.Clone(text[:n]), fds}
			l.mu.Unlock()
		}
	}
}

// kill ends a life of the role.
func (l *layersRole) kill() {
	l.mu.Lock()
	cmd, keeping := l.cmd, l.keeping
	l.mu.Unlock()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	<-keeping
}

// erofsNode starts a node for tests that need only EROFS.
func erofsNode(t *testing.T) *node {
	t.Helper()
	n := startNode(t)
	if n.layers == nil {
		t.Skip("about erofs alone")
	}
	return n
}

// corpusImage imports an image with all that layers can hold.
func (n *node) corpusImage() {
	n.t.Helper()
	layers, err := corpus.Layers()
	if err != nil {
		n.t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	archive := filepath.Join(n.scratch, "corpus.tar")
	saveLayers(n.t, archive, "", helperName, append(layers, programLayer(n.t, self, helperName))...)
	n.importImage(testImage + "=" + archive)
}

// A container sees the same files, whether containerd has unpacked the layers or each
// layer is a single file.
func TestContainersSeeSameFiles(t *testing.T) {
	if os.Getenv(snapshotterVariable) != "erofs" {
		t.Skip("compares the other way with erofs, once")
	}
	seen := map[string][]string{}
	for _, snapshotter := range []string{"overlayfs", "erofs"} {
		t.Run(snapshotter, func(t *testing.T) {
			n := startNodeWith(t, snapshotter)
			n.corpusImage()
			p := n.runPod("corpus")
			p.user = 0
			id := p.run("sleeper", 0, "sleep")
			text, err := n.exec(id, "describe")
			if err != nil {
				t.Fatal(err)
			}
			seen[snapshotter] = slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
				// Nobody without privilege can unpack a device; and of a file's
				// two names in different layers overlayfs counts the hidden one.
				return strings.HasPrefix(line, `"nodes`) || strings.HasPrefix(line, `"hard/below"`)
			})
		})
	}
	if len(seen["overlayfs"]) < 1500 {
		t.Fatalf("%d files", len(seen["overlayfs"]))
	}
	if d := corpus.Difference(seen["erofs"], seen["overlayfs"]); d != "" {
		t.Error(d)
	}
}

// Processes that read and execute files go on without an error while the program that
// serves the files is killed again and again.
func TestKillLayersUnderLoad(t *testing.T) {
	n := erofsNode(t)
	n.corpusImage()
	p := n.runPod("soak")
	p.user = 0
	id := p.run("soak", 0, "soak", "4")
	killed := 0
	for {
		if s := n.status(id); s.FinishedAt != 0 {
			if s.ExitCode != 0 {
				text, _ := os.ReadFile(filepath.Join(n.scratch, "logs", "soak", "soak.log"))
				t.Errorf("ended with %d:\n%s", s.ExitCode, text)
			}
			break
		}
		n.layers.kill()
		n.layers.start()
		killed++
	}
	if killed < 5 {
		t.Errorf("killed %d times only", killed)
	}
	t.Logf("killed %d times", killed)
}

// A read of content that storage has changed fails, and never returns other content.
func TestDamagedLayer(t *testing.T) {
	n := erofsNode(t)
	n.corpusImage()
	layers, err := filepath.Glob(filepath.Join(n.scratch, "containerd/*/snapshots/*/layer.erofs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range layers {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Size() < 14<<20 {
			continue // only the first has what is large
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
		damage(t, path)
	}
	p := n.runPod("damaged")
	p.user = 0
	id := p.run("sleeper", 0, "sleep")
	if text, err := n.exec(id, "describe"); err == nil {
		t.Errorf("all files can be read: %d bytes", len(text))
	}
	if text, err := os.ReadFile(n.layers.log); err != nil || !strings.Contains(string(text), "is damaged") {
		t.Errorf("nothing is said of it: %s, %v", text, err)
	}
}

// damage changes a bit every 64 KB in the middle of a file.
func damage(t *testing.T, path string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 1)
	for at := int64(1 << 20); at < 4<<20; at += 64 << 10 {
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 1
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
}

// soaking is soak's message when it knows the files to read.
const soaking = "soaking"

// soak reads all files again and again, partly without the kernel's cache, and compares
// their digests. It also starts processes from the image that do the same.
func soak(times string, stop <-chan os.Signal) int {
	rounds, err := strconv.Atoi(times)
	if err != nil {
		return 2
	}
	want, err := digests()
	if err != nil {
		fmt.Println("first:", err)
		return 1
	}
	if rounds == 1 {
		return 0
	}
	fmt.Println(soaking)
	stopped := make(chan struct{})
	if rounds == 0 {
		rounds = math.MaxInt
		go func() {
			<-stop
			close(stopped)
		}()
	}
	errs := make(chan error, 4)
	for range 4 {
		go func() {
			for range rounds {
				select {
				case <-stopped:
					errs <- nil
					return
				default:
				}
				got, err := digests()
				if err == nil && got != want {
					err = fmt.Errorf("read %x, before %x", got, want)
				}
				var out []byte
				if err == nil {
					out, err = exec.Command("/proc/self/exe", "soak", "1").CombinedOutput()
				}
				if err != nil {
					errs <- fmt.Errorf("%w: %s", err, out)
					return
				}
			}
			errs <- nil
		}()
	}
	code := 0
	for range 4 {
		if err := <-errs; err != nil {
			fmt.Println(err)
			code = 1
		}
	}
	return code
}

// digests returns one digest of all regular files of the image. The order of the files
// does not change it. It drops some files from the kernel's cache before it reads them.
func digests() ([32]byte, error) {
	var sum [32]byte
	err := filepath.WalkDir("/", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() && slices.Contains([]string{"/proc", "/sys", "/dev"}, path) {
			return errors.Join(err, fs.SkipDir)
		}
		if !e.Type().IsRegular() || strings.HasPrefix(path, "/etc/") {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if rand.IntN(3) == 0 { // so that it is requested again
			_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
		}
		text, err := os.ReadFile(path)
		for i, b := range sha256.Sum256(append(text, path...)) {
			sum[i] ^= b
		}
		return err
	})
	if errors.Is(err, fs.SkipDir) {
		err = nil
	}
	return sum, err
}

// The mount of an image ends with the image.
func TestRemoveImage(t *testing.T) {
	n := erofsNode(t)
	n.helperImage()
	p := n.runPod("short")
	if s := n.awaitExit(p.run("short", 0, "exit", "0")); s.ExitCode != 0 {
		t.Errorf("ended with %d", s.ExitCode)
	}
	served := func() int {
		text, _ := os.ReadFile("/proc/self/mountinfo")
		return strings.Count(string(text), "fuse.berth")
	}
	if served() == 0 {
		t.Error("no image is mounted")
	}
	p.remove()
	n.removeImage(testImage)
	if !eventually(20*time.Second, func() bool { return served() <= 1 }) { // that of the sandbox stays
		t.Errorf("%d images are mounted", served())
	}
}
