package fuse

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fusewire"
	"berth.dev/berth/runtime/internal/idmap"
	"berth.dev/berth/runtime/internal/tree"
)

// slowStorage blocks large reads until freed is closed, and reports each on held.
type slowStorage struct {
	from        io.ReaderAt
	held, freed chan struct{}
}

func (s slowStorage) ReadAt(into []byte, at int64) (int, error) {
	if len(into) == large {
		s.held <- struct{}{}
		<-s.freed
	}
	return s.from.ReadAt(into, at)
}

const large = 64 << 10

// TestWaitingReadsBlockNothing blocks more reads than there are workers at first,
// and sends another request meanwhile. A socket stands for the kernel.
func TestWaitingReadsBlockNothing(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "layer"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := erofs.NewWriter(file)
	n, err := w.File(erofs.Meta{Mode: erofs.TypeRegular | 0o644}, bytes.NewReader(bytes.Repeat([]byte("berth"), large)), 5*large)
	if err == nil {
		err = w.Link(w.Root(), "large", n)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	const waiting = 3 * workers
	storage := slowStorage{file, make(chan struct{}, waiting), make(chan struct{})}
	image, err := erofs.OpenChanging(storage, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	merged, err := tree.New([]*erofs.Image{image})
	if err != nil {
		t.Fatal(err)
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	kernel, device := os.NewFile(uintptr(ends[0]), "kernel"), os.NewFile(uintptr(ends[1]), "device")
	defer device.Close()
	// End the test if no reply comes.
	if err := unix.SetsockoptTimeval(ends[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 30}); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("requests", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	slots := os.NewFile(uintptr(fd), "requests")
	defer slots.Close()
	if err := slots.Truncate(SlotsSize); err != nil {
		t.Fatal(err)
	}
	served := make(chan error)
	go func() {
		served <- Mount{Tree: merged, Device: device, Slots: slots, Extra: &Extra{}, Log: slog.New(slog.DiscardHandler)}.Serve()
	}()

	ask := func(opcode uint32, unique, node uint64, body []byte) {
		t.Helper()
		b := fusewire.Order.AppendUint32(nil, uint32(fusewire.InHeader+len(body)))
		b = fusewire.Order.AppendUint32(b, opcode)
		b = fusewire.Order.AppendUint64(b, unique)
		b = fusewire.Order.AppendUint64(b, node)
		b = append(append(b, make([]byte, fusewire.InHeader-len(b))...), body...)
		if _, err := kernel.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	answer := func() (unique uint64, errno int32, body []byte) {
		t.Helper()
		b := make([]byte, 2*large)
		n, err := kernel.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return fusewire.Order.Uint64(b[8:]), int32(fusewire.Order.Uint32(b[4:])), b[fusewire.OutHeader:n]
	}
	root := uint64(1)
	ask(fusewire.OpLookup, 1, root, []byte("large\x00"))
	_, errno, entry := answer()
	if errno != 0 {
		t.Fatalf("lookup: %d", errno)
	}
	node := fusewire.Order.Uint64(entry)
	read := make([]byte, 40)
	fusewire.Order.PutUint32(read[16:], large)
	for i := range waiting {
		ask(fusewire.OpRead, uint64(100+i), node, read)
	}
	for i := range waiting {
		select {
		case <-storage.held:
		case <-time.After(30 * time.Second):
			t.Fatalf("%d reads wait, and hold up the next", i)
		}
	}
	ask(fusewire.OpGetattr, 2, root, make([]byte, 16))
	if unique, errno, _ := answer(); unique != 2 || errno != 0 {
		t.Errorf("request %d is answered with %d, not the one that needs no storage", unique, errno)
	}
	close(storage.freed)
	for range waiting {
		if unique, errno, body := answer(); unique < 100 || errno != 0 || len(body) != large {
			t.Errorf("request %d is answered with %d and %d bytes", unique, errno, len(body))
		}
	}
	kernel.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// A reply reads a bounded number of entries of subdirectories. The replies together have all
// entries of the directory.
func TestReplyReadsBoundedEntries(t *testing.T) {
	const directories, links = 40, 20_000
	file := corpus.SharedEntries(directories, links)
	image, err := erofs.Open(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := tree.New([]*erofs.Image{image})
	if err != nil {
		t.Fatal(err)
	}
	w := worker{pool: &pool{Mount: Mount{Tree: merged, Log: slog.New(slog.DiscardHandler)}}}
	names, body := 0, make([]byte, 24)
	fusewire.Order.PutUint32(body[16:], 1<<20)
	for {
		w.out = make([]byte, fusewire.OutHeader)
		if errno := w.readdir(fusewire.Request{Node: tree.RootID, Body: body}, true); errno != 0 {
			t.Fatal(errno)
		}
		here := 0
		for rest := w.out[fusewire.OutHeader:]; len(rest) > 0; here++ {
			entry := rest[fusewire.EntrySize:]
			copy(body[8:16], entry[8:]) // the next offset
			rest = entry[fusewire.DirentLength(string(entry[24:24+fusewire.Order.Uint32(entry[16:])])):]
		}
		if here == 0 {
			break
		}
		if most := maxChildEntries/links + 3; here > most {
			t.Errorf("a reply has %d entries, want at most %d", here, most)
		}
		names += here
	}
	if names != directories+2 {
		t.Errorf("%d entries, want %d", names, directories+2)
	}
}

func TestShownOwners(t *testing.T) {
	ids := []idmap.Extent{{First: 0, Count: 65536}}
	n := tree.Node{Inode: erofs.Inode{Meta: erofs.Meta{UID: 1000, GID: 1_000_650_000}}}
	for _, c := range []struct {
		mount    Mount
		uid, gid uint32
	}{
		{Mount{}, 1000, 1_000_650_000},
		{Mount{IDs: idmap.Map{UIDs: ids, GIDs: ids}}, 1000, idmap.Nobody},
		{Mount{Squash: true}, 0, 0},
	} {
		if got := c.mount.owned(n); got.UID != c.uid || got.GID != c.gid {
			t.Errorf("%+v shows %d:%d, want %d:%d", c.mount, got.UID, got.GID, c.uid, c.gid)
		}
	}
}
