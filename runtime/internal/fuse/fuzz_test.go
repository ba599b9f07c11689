package fuse

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fusewire"
	"berth.dev/berth/runtime/internal/fuzzbound"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/tree"
)

// FuzzRequest sends arbitrary requests to a tree with each kind of file. The kernel
// sends requests, but programs in pods choose their numbers and names.
func FuzzRequest(f *testing.F) {
	merged := smallTree(f)
	for _, opcode := range []uint32{fusewire.OpLookup, fusewire.OpForget, fusewire.OpGetattr, fusewire.OpReadlink, fusewire.OpOpen, fusewire.OpRead, fusewire.OpStatfs, fusewire.OpGetxattr, fusewire.OpListxattr, fusewire.OpInit, fusewire.OpReaddir, fusewire.OpReaddirplus, 99} {
		f.Add(opcode, uint64(tree.RootID), append([]byte("\xff\xff\xff\xff\xff\xff\xff\x7f\x00\x00\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff"), make([]byte, 20)...), true)
		for node := range uint64(6) {
			f.Add(opcode, node, append([]byte("file\x00\x00\x00\x00user.a\x00"), make([]byte, 24)...), false)
		}
	}
	f.Add(uint32(fusewire.OpInit), uint64(0), []byte("\x07\x00\x00\x00\x1f\x00\x00\x00\x00\x00\x02\x00\xff\xff\xff\xff"), true)
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.Fatal(err)
	}
	kernel := os.NewFile(uintptr(ends[0]), "kernel")
	defer kernel.Close()
	defer unix.Close(ends[1])
	const largest = fusewire.OutHeader + fusewire.MaxRead
	if err := unix.SetsockoptInt(ends[1], unix.SOL_SOCKET, unix.SO_SNDBUF, 2*largest); err != nil {
		f.Fatal(err)
	}
	answer := make([]byte, largest+1)
	f.Fuzz(func(t *testing.T, opcode uint32, node uint64, body []byte, squash bool) {
		fuzzbound.Watch(t)
		var logged bytes.Buffer
		ids := []idmap.Extent{{First: 0, Count: 1000}}
		mount := Mount{Tree: merged, Squash: squash, IDs: idmap.Map{UIDs: ids, GIDs: ids}, Log: slog.New(slog.NewTextHandler(&logged, nil))}
		w := worker{pool: &pool{Mount: mount}, fd: ends[1], slot: make([]byte, fusewire.RequestSize)}
		size := fusewire.InHeader + copy(w.slot[fusewire.InHeader:], body)
		fusewire.Order.PutUint32(w.slot[0:], uint32(size))
		fusewire.Order.PutUint32(w.slot[4:], opcode)
		fusewire.Order.PutUint64(w.slot[8:], 7)
		fusewire.Order.PutUint64(w.slot[16:], node)
		w.handle()
		if bytes.Contains(logged.Bytes(), []byte("goroutine")) {
			t.Fatalf("a panic: %s", &logged)
		}
		n, _, err := unix.Recvfrom(ends[0], answer, unix.MSG_DONTWAIT)
		silent := opcode == fusewire.OpForget || opcode == fusewire.OpBatchForget || opcode == fusewire.OpInterrupt
		switch {
		case silent && err == nil:
			t.Error("it is answered")
		case silent:
		case err != nil:
			t.Errorf("no answer: %v", err)
		case n < fusewire.OutHeader || n > largest || int(fusewire.Order.Uint32(answer)) != n || fusewire.Order.Uint64(answer[8:]) != 7:
			t.Errorf("an answer of %d bytes: %x", n, answer[:min(n, fusewire.OutHeader)])
		case fusewire.Order.Uint32(answer[4:]) != 0 && n != fusewire.OutHeader:
			t.Errorf("an error with %d bytes", n)
		}
	})
}

// FuzzSlot parses arbitrary content of the memory file, as a predecessor may have
// left it.
func FuzzSlot(f *testing.F) {
	merged := smallTree(f)
	f.Add(make([]byte, fusewire.InHeader))
	f.Add([]byte("\x28\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00________________"))
	f.Fuzz(func(t *testing.T, slot []byte) {
		fuzzbound.Watch(t)
		var logged bytes.Buffer
		w := worker{pool: &pool{Mount: Mount{Tree: merged, Log: slog.New(slog.NewTextHandler(&logged, nil))}}, fd: -1, slot: slot}
		w.handle()
		if bytes.Contains(logged.Bytes(), []byte("goroutine")) {
			t.Fatalf("a panic: %s", &logged)
		}
	})
}

// smallTree returns a tree with a directory, a file with an extended attribute,
// and a link.
func smallTree(f *testing.F) *tree.Tree {
	f.Helper()
	file, err := os.Create(filepath.Join(f.TempDir(), "layer"))
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { file.Close() })
	w := erofs.NewWriter(file)
	dir, err := w.Dir(erofs.Meta{Mode: erofs.TypeDir | 0o755})
	if err != nil {
		f.Fatal(err)
	}
	for name, mode := range map[string]uint16{"file": erofs.TypeRegular, "link": erofs.TypeSymlink} {
		content := bytes.Repeat([]byte("berth"), 2000)
		if mode == erofs.TypeSymlink {
			content = content[:10]
		}
		n, err := w.File(erofs.Meta{Mode: mode | 0o644, UID: 5000, Xattrs: []erofs.Xattr{{Name: "user.a", Value: []byte("b")}}}, bytes.NewReader(content), int64(len(content)))
		if err == nil {
			err = w.Link(dir, name, n)
		}
		if err != nil {
			f.Fatal(err)
		}
	}
	if err := w.Link(w.Root(), "dir", dir); err != nil {
		f.Fatal(err)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		f.Fatal(err)
	}
	image, err := erofs.Open(file, info.Size())
	if err != nil {
		f.Fatal(err)
	}
	merged, err := tree.New([]*erofs.Image{image})
	if err != nil {
		f.Fatal(err)
	}
	return merged
}
