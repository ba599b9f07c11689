package erofs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/fuzzbound"
)

// capability is the attribute's value for cap_net_raw=ep. The kernel accepts only
// valid values.
const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// sample writes an image with every kind of content, and returns its file.
func sample(t *testing.T, seed uint64) (*os.File, int64) {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	w := NewWriter(file)
	random := rand.New(rand.NewPCG(seed, 1))
	must := func(n *Node, err error) *Node {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
		return n
	}
	check := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	check(w.Describe(w.Root(), Meta{Mode: TypeDir | 0o751, UID: 3, Seconds: 77, Xattrs: []Xattr{{"user.root", []byte("r")}}}))
	dirs := []*Node{w.Root()}
	for i := range 12 {
		dir := must(w.Dir(Meta{Mode: TypeDir | 0o755, UID: uint32(i), Seconds: int64(i)}))
		check(w.Link(dirs[random.IntN(len(dirs))], fmt.Sprintf("dir%d", i), dir))
		dirs = append(dirs, dir)
	}
	sizes := []int{0, 1, 100, 4031, 4032, 4033, 4095, 4096, 4097, 8192, 12000, flushSize, flushSize + 1, 1<<20 + 17}
	for i := range 300 {
		content := make([]byte, sizes[i%len(sizes)])
		if i%5 != 0 { // otherwise a hole
			for k := range content {
				content[k] = byte(random.Uint32())
			}
		}
		var xattrs []Xattr
		if i%7 == 0 {
			xattrs = []Xattr{{"user.a", content[:min(len(content), 600)]}, {"security.capability", []byte(capability)}, {"trusted.x", nil}}
		}
		n := must(w.File(Meta{Mode: TypeRegular | uint16(random.IntN(0o10000)), UID: uint32(i), GID: 1 << 20, Seconds: int64(i) - 9, Nanoseconds: uint32(i), Xattrs: xattrs}, bytes.NewReader(content), int64(len(content))))
		check(w.Link(dirs[random.IntN(len(dirs))], fmt.Sprintf("file%d", i), n))
		if i%20 == 0 {
			check(w.Link(dirs[random.IntN(len(dirs))], fmt.Sprintf("again%d", i), n))
		}
	}
	for _, target := range []string{"a", strings.Repeat("long/", 800)} {
		n := must(w.File(Meta{Mode: TypeSymlink | 0o777}, strings.NewReader(target), int64(len(target))))
		check(w.Link(dirs[1], fmt.Sprintf("link%d", len(target)), n))
	}
	for i, kind := range []uint16{TypeFIFO, TypeSocket, TypeChar, TypeBlock} {
		n := must(w.File(Meta{Mode: kind | 0o600, Device: DeviceNumber(uint32(i%2)*7, uint32(i%2)*300)}, strings.NewReader(""), 0))
		check(w.Link(dirs[2], fmt.Sprintf("special%d", i), n))
	}
	big := must(w.Dir(Meta{Mode: TypeDir | 0o700}))
	check(w.Link(w.Root(), "big", big))
	for i := range 2000 {
		n := must(w.File(Meta{Mode: TypeRegular | 0o644}, strings.NewReader("x"), 1))
		check(w.Link(big, fmt.Sprintf("%s%04d", strings.Repeat("n", i%200), i), n))
	}
	check(w.Link(w.Root(), "gone", big.Child("0000")))
	check(w.Link(w.Root(), "gone", must(w.Dir(Meta{Mode: TypeDir | 0o711}))))
	check(w.Close())
	info, err := file.Stat()
	check(err)
	return file, info.Size()
}

// describe formats the metadata of a file. Tests compare the text for this package
// with the text for the kernel.
func describe(path string, mode uint16, uid, gid, links uint32, size int64, device uint32, seconds int64, nanoseconds uint32, xattrs map[string]string, content string) string {
	var attributes []string
	for _, name := range slices.Sorted(maps.Keys(xattrs)) {
		attributes = append(attributes, fmt.Sprintf("%s=%q", name, xattrs[name]))
	}
	if mode&TypeMask == TypeDir {
		size = 0
	}
	return fmt.Sprintf("%s %o %d:%d links=%d size=%d dev=%d %d.%d %v %x", path, mode, uid, gid, links, size, device, seconds, nanoseconds, attributes, content)
}

func readTree(t *testing.T, image *Image) []string {
	t.Helper()
	var lines []string
	var walk func(path string, number, parent uint64)
	walk = func(path string, number, parent uint64) {
		n, err := image.Inode(number)
		if err != nil {
			t.Fatal(err)
		}
		all, err := image.Xattrs(n)
		if err != nil {
			t.Fatal(err)
		}
		xattrs := map[string]string{}
		for _, x := range all {
			xattrs[x.Name] = string(x.Value)
		}
		var content []byte
		if kind := n.Mode & TypeMask; kind == TypeRegular || kind == TypeSymlink {
			content = make([]byte, n.Size)
			if got, err := image.ReadAt(n, content, 0); err != nil || got != len(content) {
				t.Fatalf("%s: read %d, %v", path, got, err)
			}
		}
		lines = append(lines, describe(path, n.Mode, n.UID, n.GID, n.Links, n.Size, n.Device, n.Seconds, n.Nanoseconds, xattrs, string(content)))
		if !n.IsDir() {
			return
		}
		entries, up, err := image.Directory(n)
		if err != nil || up != parent {
			t.Fatalf("%s: parent %d, want %d; %v", path, up, parent, err)
		}
		for _, e := range entries {
			walk(path+"/"+e.Name, e.Number, number)
		}
	}
	walk("", Root, Root)
	slices.Sort(lines)
	return lines
}

func TestReadWrittenImages(t *testing.T) {
	file, size := sample(t, 1)
	image, err := Open(file, size)
	if err != nil {
		t.Fatal(err)
	}
	lines := readTree(t, image)
	if len(lines) < 2300 || !image.HasXattrs {
		t.Errorf("%d lines, attributes %v", len(lines), image.HasXattrs)
	}
	n, err := image.Inode(Root)
	if err != nil || n.Mode != TypeDir|0o751 || n.UID != 3 || n.Seconds != 77 {
		t.Errorf("root is %+v, %v", n, err)
	}
}

// TestKernelSeesSameTree compares the files that this package reads from an image
// with the files that the kernel shows.
func TestKernelSeesSameTree(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount an image")
	}
	file, size := sample(t, 2)
	mounted := t.TempDir()
	if out, err := exec.Command("mount", "-t", "erofs", "-o", "ro", file.Name(), mounted).CombinedOutput(); err != nil {
		t.Skipf("this kernel does not mount image files: %s", out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(mounted, 0); err != nil {
			t.Error(err)
		}
	})
	image, err := Open(file, size)
	if err != nil {
		t.Fatal(err)
	}
	want := readTree(t, image)
	var got []string
	err = filepath.WalkDir(mounted, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		content := ""
		switch st.Mode & TypeMask {
		case TypeRegular:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			content = string(text)
		case TypeSymlink:
			if content, err = os.Readlink(path); err != nil {
				return err
			}
		}
		device := uint32(0)
		if kind := st.Mode & TypeMask; kind == TypeChar || kind == TypeBlock {
			device = DeviceNumber(unix.Major(st.Rdev), unix.Minor(st.Rdev))
		}
		got = append(got, describe(strings.TrimPrefix(path, mounted), uint16(st.Mode), st.Uid, st.Gid, uint32(st.Nlink), st.Size, device, st.Mtim.Sec, uint32(st.Mtim.Nsec), kernelXattrs(t, path), content))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Fatalf("line %d of %d and %d:\nkernel %.300s\nours   %.300s", i, len(got), len(want), at(got, i), at(want, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

func kernelXattrs(t *testing.T, path string) map[string]string {
	t.Helper()
	all := map[string]string{}
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(path, names)
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 65536)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = string(value[:n])
	}
	return all
}

func TestWriterRefuses(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w := NewWriter(file)
	good, err := w.File(Meta{Mode: TypeRegular}, strings.NewReader(""), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\x00", strings.Repeat("n", 256)} {
		if w.Link(w.Root(), name, good) == nil {
			t.Errorf("name %q is accepted", name)
		}
	}
	for what, meta := range map[string]Meta{
		"no type": {}, "a directory": {Mode: TypeDir},
		"an unknown attribute": {Mode: TypeRegular, Xattrs: []Xattr{{"system.posix_acl_access", nil}}},
		"large attributes":     {Mode: TypeRegular, Xattrs: []Xattr{{"user.a", make([]byte, 3000)}}},
	} {
		if _, err := w.File(meta, strings.NewReader(""), 0); err == nil {
			t.Errorf("%s is accepted", what)
		}
	}
	if _, err := w.File(Meta{Mode: TypeRegular}, strings.NewReader("short"), 6); err == nil {
		t.Error("missing content is accepted")
	}
	if _, err := w.File(Meta{Mode: TypeFIFO}, strings.NewReader("x"), 1); err == nil {
		t.Error("content of a FIFO is accepted")
	}
}

func TestDamageIsFound(t *testing.T) {
	file, size := sample(t, 3)
	image, err := Open(file, size)
	if err != nil {
		t.Fatal(err)
	}
	if err := image.Verify(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < len(whole); at += len(whole) / 53 {
		b := bytes.Clone(whole)
		b[at] ^= 1
		image, err := Open(bytes.NewReader(b), size)
		if err == nil {
			err = image.Verify()
		}
		if !errors.Is(err, ErrCorrupt) {
			t.Fatalf("a change at %d of %d is not found: %v", at, len(b), err)
		}
	}
	for _, cut := range []int64{0, 1, 100, BlockSize, size - BlockSize, size - 1} {
		if _, err := Open(bytes.NewReader(whole[:cut]), cut); !errors.Is(err, ErrCorrupt) {
			t.Errorf("an image of %d bytes instead of %d: %v", cut, size, err)
		}
	}
}

// FuzzRead reads all of a malformed image.
func FuzzRead(f *testing.F) {
	file, err := os.Create(filepath.Join(f.TempDir(), "image"))
	if err != nil {
		f.Fatal(err)
	}
	defer file.Close()
	w := NewWriter(file)
	dir, _ := w.Dir(Meta{Mode: TypeDir | 0o755, Xattrs: []Xattr{{"user.a", []byte("b")}}})
	_ = w.Link(w.Root(), "dir", dir)
	for name, mode := range map[string]uint16{"file": TypeRegular, "link": TypeSymlink} {
		n, _ := w.File(Meta{Mode: mode}, strings.NewReader("content"), 7)
		_ = w.Link(dir, name, n)
	}
	if err := w.Close(); err != nil {
		f.Fatal(err)
	}
	whole, err := os.ReadFile(file.Name())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint16(0), []byte{}, uint16(0), []byte{})
	f.Add(uint16(rootOffset), []byte{1, 2, 3}, uint16(4096), []byte{9})
	// Changes at two places get further than random bytes.
	f.Fuzz(func(t *testing.T, at uint16, change []byte, at2 uint16, change2 []byte) {
		fuzzbound.Watch(t)
		b := bytes.Clone(whole)
		copy(b[int(at)%len(b):], change)
		copy(b[int(at2)%len(b):], change2)
		// Most changes fail here, at the checksums. So also read without them.
		_, _ = Open(bytes.NewReader(b), int64(len(b)))
		size := int64(len(b)) &^ (BlockSize - 1)
		image, err := open(bytes.NewReader(b[:size]), size)
		if err != nil {
			return
		}
		buffer := make([]byte, 8192)
		for number := range image.Numbers() {
			n, err := image.Inode(number)
			if err != nil {
				continue
			}
			for _, at := range []int64{0, 1, 4095, 4096, n.Size - 1, n.Size} {
				if got, err := image.ReadAt(n, buffer, at); err == nil && at >= 0 && at < n.Size && got == 0 {
					t.Errorf("inode %d of %d bytes: nothing at %d", number, n.Size, at)
				}
			}
			_, _ = image.Link(n)
			_, _ = image.Xattrs(n)
			_, _, _ = image.Directory(n)
		}
	})
}

// The error of a directory beyond the limit names the file.
func TestEntriesOfADirectoryAreBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layer")
	if err := os.WriteFile(path, corpus.SharedEntries(1, 300), 0o600); err != nil {
		t.Fatal(err)
	}
	image, file, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	dir, err := image.Inode(corpus.InodeNumber(1))
	if err != nil {
		t.Fatal(err)
	}
	if all, _, err := image.Directory(dir); err != nil || len(all) != 300 {
		t.Errorf("%d entries of 300: %v", len(all), err)
	}
	image.maxEntries = 299
	if _, _, err := image.Directory(dir); !errors.Is(err, ErrTooLarge) || !strings.Contains(err.Error(), path) {
		t.Errorf("300 entries, where 299 are permitted: %v", err)
	}
	image.MultiplyLimits(2)
	if all, _, err := image.Directory(dir); err != nil || len(all) != 300 {
		t.Errorf("%d entries of 300, where 598 are permitted: %v", len(all), err)
	}
}

// A writer makes no directory that a reader with its limits would refuse.
func TestWrittenDirectoriesAreBounded(t *testing.T) {
	for times, want := range map[int]error{1: ErrTooLarge, 2: nil} {
		file, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		w := NewWriter(file)
		w.maxEntries = 2
		w.MultiplyLimits(times)
		for _, name := range []string{"a", "b", "c"} {
			n, err := w.File(Meta{Mode: TypeRegular}, strings.NewReader(""), 0)
			if err = errors.Join(err, w.Link(w.Root(), name, n)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); !errors.Is(err, want) {
			t.Errorf("3 entries, where %d are permitted: %v", 2*times, err)
		}
	}
}

// A file of holes claims any number of blocks. Their checksums are not kept in memory, but
// are still compared.
func TestChecksumsOfManyBlocksTakeNoMemory(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const blocks = maxSums/sumSize + 1
	var end sums
	end.set(7, checksum(make([]byte, BlockSize)))
	if err := end.write(file, blocks*BlockSize); err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	c, size, err := openChecked(file, info.Size())
	if err != nil || size != blocks*BlockSize {
		t.Fatalf("%d bytes: %v", size, err)
	}
	if len(c.sums) > 0 {
		t.Errorf("%d bytes of checksums are kept", len(c.sums))
	}
	block := make([]byte, BlockSize)
	if _, err := c.ReadAt(block, 7*BlockSize); err != nil {
		t.Error(err)
	}
	for _, number := range []int64{0, 8, blocks - 1, blocks} {
		if _, err := c.ReadAt(block, number*BlockSize); !errors.Is(err, ErrCorrupt) {
			t.Errorf("block %d, whose checksum is wrong: %v", number, err)
		}
	}
}

// A table of contents may claim gigabytes whose content never comes. Their checksums take
// no memory.
func TestMissingContentTakesNoMemory(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const size = 16 << 30
	w := NewWriter(file)
	n, at, err := w.Space(Meta{Mode: TypeRegular}, size)
	if err == nil {
		err = errors.Join(w.Link(w.Root(), "large", n), w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(w.sums.pages) > 3 {
		t.Errorf("%d pages of checksums are in memory, of %d", len(w.sums.pages), size/BlockSize/pageSums)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	image, err := Open(file, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	c := image.from.(*checked)
	for _, number := range []int64{0, at / BlockSize, c.blocks - 1} {
		sum, err := c.sumsOf(number, 1)
		if missing := number == at/BlockSize; err != nil || (order.Uint32(sum) == 0) != missing {
			t.Errorf("block %d of %d has checksum %x, %v", number, c.blocks, sum, err)
		}
	}
}
