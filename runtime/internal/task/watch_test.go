package task

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/bundle"
)

func TestOnlyContainersWithControlGroupsAreWatched(t *testing.T) {
	for _, test := range []struct {
		name string
		node bundle.Node
		want int
	}{
		{"nothing delegated", bundle.Node{}, 0},
		{"delegated", bundle.Node{Controllers: []string{"cpu", "memory"}}, 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, in, _ := newTestService(t, test.node, child(t).Process.Pid)
			in.watches = true
			create(t, s, "pause", 0)
			create(t, s, "one", 0)
			if got := inotifyInstances(t); got != test.want {
				t.Errorf("%d inotify instances, want %d", got, test.want)
			}
			for _, watch := range in.watchers {
				// As containerd does at the container's end; after the end of a watch the
				// file is closed already.
				if err := watch.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
					t.Error(err)
				}
				<-watch.ended
			}
			if got := inotifyInstances(t); got != 0 {
				t.Errorf("%d inotify instances after the end", got)
			}
		})
	}
}

func inotifyInstances(t *testing.T) (count int) {
	t.Helper()
	found, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if target, err := os.Readlink(path); err == nil && strings.HasSuffix(target, "inotify") {
			count++
		}
	}
	return count
}

// watcher reads an inotify instance as that of containerd does (internal/oom).
type watcher struct {
	file  *os.File
	ended chan struct{}
}

func startWatcher(path string) (*watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &watcher{os.NewFile(uintptr(fd), "inotifyfd"), make(chan struct{})}
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_MODIFY); err != nil {
		return nil, errors.Join(err, w.file.Close())
	}
	go func() {
		defer close(w.ended)
		defer w.file.Close()
		for {
			if _, err := w.file.Read(make([]byte, 10*unix.SizeofInotifyEvent)); err != nil {
				return
			}
		}
	}()
	return w, nil
}

// A node counts an inotify instance for each container with a control group
// (probe.PodCapacity), because containerd's service makes one. If a new containerd makes
// none, or more, correct the count.
func TestContainerdWatchesEachContainerWithInotify(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/containerd/containerd/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		file, words string
		times       int
	}{
		{"cmd/containerd-shim-runc-v2/task/service.go", "s.cg2oom.Add(container.ID,", 1},
		{"internal/oom/watcher.go", "memoryEventNonBlockFD(cgroupPath)", 1},
		{"internal/oom/utils.go", "unix.InotifyInit", 1},
	} {
		text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), test.file))
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(text), test.words); got != test.times {
			t.Errorf("%s has %q %d times, want %d", test.file, test.words, got, test.times)
		}
	}
}
