package mounts

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/stargz-snapshotter/estargz"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/fuse"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/lazy"
	"berth.dev/berth/runtime/internal/linux"
)

// TestArrivingLayerIsReleasedWithLastMount ends two mounts of a layer after its
// table of contents has arrived. Sockets stand for the kernel's ends of the mounts.
func TestArrivingLayerIsReleasedWithLastMount(t *testing.T) {
	path := comingLayer(t)
	s := NewServer(nil, nil, slog.New(slog.DiscardHandler), func(string) {})
	var kernels []*os.File
	for _, id := range []string{"first", "second"} {
		kernel, device, slots := mount(t)
		layers, err := s.open([]string{path}, nil)
		if err == nil {
			err = s.start(Request{ID: id, Layers: []string{path}}, layers, device, slots)
		}
		if err != nil {
			t.Fatal(err)
		}
		kernels = append(kernels, kernel)
	}
	for i, kernel := range kernels {
		if !opened(t, path) {
			t.Errorf("%d mounts are left, and the layer is closed", len(kernels)-i)
		}
		kernel.Close()
		await(t, func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.served) == len(kernels)-1-i
		})
	}
	await(t, func() bool { return !opened(t, path) })
}

// The option that raises the limits on images raises the limit on the directories of a mount.
func TestOptionRaisesLimitOfMounts(t *testing.T) {
	path := comingLayer(t)
	entries := func(times string) int {
		s := NewServer(nil, nil, slog.New(slog.DiscardHandler), func(string) {})
		if err := s.Budget.Set(times); err != nil {
			t.Fatal(err)
		}
		opened, err := s.open([]string{path}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		return opened.images[0].MaxEntries()
	}
	if usual, raised := entries("1"), entries("3"); raised != 3*usual {
		t.Errorf("a directory may have %d entries, and %d with --image-budget 3", usual, raised)
	}
}

// TestHostileImageDelaysNoOtherMount requests a mount of an image whose layers are
// hard links to a missing file, and then another mount.
func TestHostileImageDelaysNoOtherMount(t *testing.T) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	client, err := Conn(ends[0])
	if err != nil {
		t.Fatal(err)
	}
	requests, err := Conn(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	// A missing answer ends the test.
	if err := client.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	s := NewServer(requests, nil, slog.New(slog.DiscardHandler), func(string) {})
	var served errgroup.Group
	served.Go(func() error { return s.Run(t.Context()) })
	var layers []string
	for k := range 30 {
		layers = append(layers, layerOf(t, tar.Header{Typeflag: tar.TypeLink, Name: fmt.Sprintf("f%d", k), Linkname: "nothere"}))
	}
	var kernels []*os.File
	for _, request := range []Request{{ID: "hostile", Layers: layers}, {ID: "other", Layers: layers[:1]}} {
		kernel, device, slots := mount(t)
		slots.Close()
		kernels = append(kernels, kernel)
		if err := linux.SendPacket(client, request, device); err != nil {
			t.Fatal(err)
		}
		device.Close()
		var answer reply
		if _, err := linux.ReceivePacket(client, &answer); err != nil || answer != (reply{ID: request.ID}) {
			t.Fatalf("the request for %s is answered with %+v, %v", request.ID, answer, err)
		}
	}
	for _, kernel := range kernels {
		kernel.Close()
	}
	client.Close()
	if err := served.Wait(); err != nil {
		t.Error(err)
	}
	s.group.Wait()
}

// layerOf returns the path of a layer with one entry.
func layerOf(t testing.TB, header tar.Header) string {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := errors.Join(w.WriteHeader(&header), w.Close()); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "layer.erofs")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := layer.Convert(&archive, file, budget.Budget{}.Layer(0)); err != nil {
		t.Fatal(err)
	}
	return path
}

// comingLayer returns the path of a lazy layer whose registry sends no content.
func comingLayer(t *testing.T) string {
	t.Helper()
	var archive, blob bytes.Buffer
	content := bytes.Repeat([]byte("berth"), 1<<20)
	w := tar.NewWriter(&archive)
	err := w.WriteHeader(&tar.Header{Name: "large", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))})
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	z := estargz.NewWriter(&blob)
	if err == nil {
		err = z.AppendTar(&archive)
	}
	if err != nil {
		t.Fatal(err)
	}
	contents, err := z.Close()
	if err != nil {
		t.Fatal(err)
	}
	var silent atomic.Bool
	registry := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, request *http.Request) {
		if silent.Load() {
			<-request.Context().Done()
			return
		}
		http.ServeContent(out, request, "", time.Time{}, bytes.NewReader(blob.Bytes()))
	}))
	t.Cleanup(func() {
		registry.CloseClientConnections() // Close would wait for requests that do not end
		registry.Close()
	})
	path := filepath.Join(t.TempDir(), "layer.erofs")
	if err := lazy.Make(t.Context(), path, lazy.Source{URL: registry.URL}, lazy.Login{}, contents, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	silent.Store(true)
	return path
}

func mount(t *testing.T) (kernel, device, slots *os.File) {
	t.Helper()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("requests", unix.MFD_CLOEXEC)
	if err == nil {
		err = unix.Ftruncate(fd, fuse.SlotsSize)
	}
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(ends[0]), "kernel"), os.NewFile(uintptr(ends[1]), "device"), os.NewFile(uintptr(fd), "requests")
}

// opened reports whether this process has a file open.
func opened(t *testing.T, path string) bool {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if target, err := os.Readlink("/proc/self/fd/" + name.Name()); err == nil && strings.HasPrefix(target, path) {
			return true
		}
	}
	return false
}

func await(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not end")
		}
	}
}
