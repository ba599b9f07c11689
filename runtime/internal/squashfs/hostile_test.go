package squashfs

import (
	"bytes"
	"compress/zlib"
	"errors"
	"runtime"
	"strings"
	"testing"

	"berth.dev/berth/runtime/internal/budget"
)

// hostile builds images that no tool makes. The root is the first inode of the
// inode table.
type hostile struct {
	body               []byte // follows the superblock
	inodes, dirs       uint64
	fragments, xattrs  uint64
	fragmentCount, ids int
}

const blockOfHostile = 128 << 10

// at returns the offset of the image's next byte.
func (h *hostile) at() uint64 { return superSize + uint64(len(h.body)) }

// meta appends metadata in compressed blocks, and returns the offset of each.
func (h *hostile) meta(t *testing.T, data []byte) (places []uint64) {
	t.Helper()
	var packed bytes.Buffer
	w, err := zlib.NewWriterLevel(nil, zlib.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	for len(data) > 0 {
		block := data[:min(metaSize, len(data))]
		data = data[len(block):]
		packed.Reset()
		w.Reset(&packed)
		if _, err := w.Write(block); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		places = append(places, h.at())
		h.body = order.AppendUint16(h.body, uint16(packed.Len()))
		h.body = append(h.body, packed.Bytes()...)
	}
	return places
}

// list appends a list that repeats one offset.
func (h *hostile) list(place uint64, count int) (at uint64) {
	at = h.at()
	for range count {
		h.body = order.AppendUint64(h.body, place)
	}
	return at
}

// open opens the image, which has one user.
func (h *hostile) open(t *testing.T) (*Image, error) {
	t.Helper()
	ids := h.list(h.meta(t, make([]byte, 4))[0], 1)
	b := make([]byte, superSize, superSize+len(h.body))
	order.PutUint32(b[0:], magic)
	order.PutUint32(b[12:], blockOfHostile)
	order.PutUint32(b[16:], uint32(h.fragmentCount))
	order.PutUint16(b[20:], 1) // zlib
	order.PutUint16(b[26:], 1)
	order.PutUint16(b[28:], 4)
	order.PutUint64(b[40:], h.at())
	order.PutUint64(b[48:], ids)
	order.PutUint64(b[56:], h.xattrs)
	order.PutUint64(b[64:], h.inodes)
	order.PutUint64(b[72:], h.dirs)
	order.PutUint64(b[80:], h.fragments)
	b = append(b, h.body...)
	return Open(bytes.NewReader(b), int64(len(b)), budget.Budget{})
}

// newHostile returns an image without tables.
func newHostile() *hostile { return &hostile{xattrs: noTable, fragments: noTable} }

// inodeHeader returns the header that all kinds of inodes share.
func inodeHeader(kind Kind, number uint32) []byte {
	b := order.AppendUint16(nil, uint16(kind))
	b = append(b, make([]byte, 10)...) // permissions, user, group, time
	return order.AppendUint32(b, number)
}

// directoryInode returns a directory's inode with a listing of size bytes at the
// beginning of the table.
func directoryInode(number, size, xattrs uint32) []byte {
	b := inodeHeader(Dir+extended, number)
	for _, field := range []uint32{1, size + nothing, 0, number, 0, xattrs} {
		b = order.AppendUint32(b, field)
	}
	return b
}

// takes returns how many bytes do allocates.
func takes(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// memoryBudget is the memory limit for kept metadata.
const memoryBudget = maxKept * metaSize

// A megabyte of offsets that all point to one block makes a table of a gigabyte.
func TestTablesOfOneBlockTakeNoMemory(t *testing.T) {
	const places = 128 << 10
	tables := map[string]func(h *hostile, list uint64){
		"fragments":  func(h *hostile, list uint64) { h.fragments, h.fragmentCount = list, places*metaSize/16 },
		"attributes": func(h *hostile, list uint64) { h.xattrs = list - 16 },
	}
	for name, use := range tables {
		h := newHostile()
		block := h.meta(t, make([]byte, metaSize))[0]
		h.inodes = h.meta(t, directoryInode(1, 0, noXattrs))[0]
		h.body = order.AppendUint64(h.body, block)
		h.body = order.AppendUint32(h.body, places*metaSize/16)
		h.body = order.AppendUint32(h.body, 0)
		use(h, h.list(block, places))
		took := takes(func() {
			image, err := h.open(t)
			if err == nil {
				_, err = read(image)
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
		if took > memoryBudget {
			t.Errorf("%s: %d bytes of memory for an image of %d", name, took, h.at())
		}
	}
	h := newHostile()
	h.inodes = h.meta(t, directoryInode(1, 0, noXattrs))[0]
	h.fragments, h.fragmentCount = h.list(0, 1), 513
	h.body = h.body[:len(h.body)-4] // the list is shorter than the offsets of its two blocks
	if _, err := h.open(t); err != nil {
		t.Errorf("a table that may be there: %v", err)
	}
	h.fragmentCount = 1 << 20
	if _, err := h.open(t); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a table that ends behind the image: %v", err)
	}
}

// The block sizes of a file are metadata, which compresses well.
func TestFileOfManyBlocksTakesNoMemory(t *testing.T) {
	const blocks = 2 * maxFileBlocks
	h := newHostile()
	file := inodeHeader(File+extended, 2)
	file = order.AppendUint64(file, superSize)
	file = order.AppendUint64(file, blocks*blockOfHostile)
	file = append(file, make([]byte, 8)...)
	for _, field := range []uint32{1, noFragment, 0, noXattrs} {
		file = order.AppendUint32(file, field)
	}
	h.inodes = h.meta(t, append(file, make([]byte, 4*blocks)...))[0]
	image, err := h.open(t)
	if err != nil {
		t.Fatal(err)
	}
	took := takes(func() {
		if _, err = image.inode(0); err == nil || !strings.Contains(err.Error(), "blocks of a file") {
			t.Errorf("a file of %d blocks: %v", blocks, err)
		}
	})
	if took > memoryBudget {
		t.Errorf("%d bytes of memory for an image of %d", took, h.at())
	}
}

// Hard links and overlapping inodes allow a few bytes to be read many times.
func TestBlocksOfAllFilesAreBounded(t *testing.T) {
	h := newHostile()
	file := inodeHeader(File, 2)
	for _, field := range []uint32{superSize, noFragment, 0, 3 * blockOfHostile, 0, 0, 0} {
		file = order.AppendUint32(file, field)
	}
	h.inodes = h.meta(t, file)[0]
	image, err := h.open(t)
	if err != nil {
		t.Fatal(err)
	}
	image.blocks = maxBlocks - 3
	if _, err := image.inode(0); err != nil {
		t.Error(err)
	}
	if _, err := image.inode(0); err == nil || !strings.Contains(err.Error(), "of an image") {
		t.Errorf("more than %d blocks: %v", maxBlocks, err)
	}
}

// crowded returns an image whose root has a number of entries, all for one file.
func crowded(t *testing.T, entries int) *hostile {
	t.Helper()
	h := newHostile()
	var listing []byte
	for left := entries; left > 0; left -= 256 {
		listing = order.AppendUint32(listing, 255)
		listing = append(listing, make([]byte, 8)...) // the block of the inodes, and a number
		for range 256 {
			listing = order.AppendUint16(listing, uint16(len(directoryInode(1, 0, 0))))
			listing = append(listing, 0, 0, byte(FIFO), 0, 0, 0, 'n')
		}
	}
	fifo := order.AppendUint32(inodeHeader(FIFO, 2), 1)
	h.inodes = h.meta(t, append(directoryInode(1, uint32(len(listing)), noXattrs), fifo...))[0]
	h.dirs = h.meta(t, listing)[0]
	return h
}

func TestDirectoryIsReadIncrementally(t *testing.T) {
	const entries = 2 << 20
	h := crowded(t, entries)
	image, err := h.open(t)
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	took := takes(func() {
		err = image.Walk(func(path string, _ Inode) error {
			if path != "." {
				return enough
			}
			return nil
		})
	})
	if !errors.Is(err, enough) || took > memoryBudget/8 {
		t.Errorf("%d bytes of memory before the first of %d files, %v", took, entries, err)
	}
}

func TestAttributesOfAnInodeAreBounded(t *testing.T) {
	const count = 1000
	h := newHostile()
	h.inodes = h.meta(t, directoryInode(1, 0, 0))[0]
	var all []byte
	for range count {
		all = append(all, 0, 0, 1, 0, 'n') // a kind, a length, the name
		all = order.AppendUint32(all, 60<<10)
		all = append(all, make([]byte, 60<<10)...)
	}
	values := h.meta(t, all)[0]
	ref := h.meta(t, order.AppendUint32(order.AppendUint32(make([]byte, 8), count), 0))[0]
	h.xattrs = h.at()
	h.body = order.AppendUint64(h.body, values)
	h.body = order.AppendUint64(h.body, 1)
	h.list(ref, 1)
	image, err := h.open(t)
	if err != nil {
		t.Fatal(err)
	}
	took := takes(func() {
		if _, err := image.inode(0); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%d attributes of 60 KiB: %v", count, err)
		}
	})
	if took > memoryBudget/8 {
		t.Errorf("%d bytes of memory for the attributes of an inode", took)
	}
}

func TestEntriesAndPathsAreBounded(t *testing.T) {
	image, err := crowded(t, 256).open(t)
	if err != nil {
		t.Fatal(err)
	}
	root, err := image.inode(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path   string
		before int64
		want   int
	}{
		{strings.Repeat("d", 4095), 4<<20 - 256, 256},
		{strings.Repeat("d", 4096), 0, 0},
		{"", 4<<20 - 255, 255},
	} {
		count := 0
		w := walker{image, func(string, Inode) error { count++; return nil }, map[uint32]bool{}, c.before}
		err := w.directory(c.path, root)
		if count != c.want || (count < 256) != errors.Is(err, budget.ErrExceeded) {
			t.Errorf("a path of %d bytes behind %d others: %d files, %v", len(c.path), c.before, count, err)
		}
	}
}
