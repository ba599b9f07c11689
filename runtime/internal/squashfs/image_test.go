package squashfs

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ulikunitz/xz"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/fuzzbound"
)

// sample makes an image with every kind of content, and returns a description of
// its files, one per line. It converts a tar archive, so that owners and devices
// need no root.
func sample(t *testing.T, arguments ...string) (path string, lines []string) {
	t.Helper()
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		if strings.Contains(os.Getenv("BERTH_CI"), "squashfs") {
			t.Fatal(err)
		}
		t.Skip("needs mksquashfs: apt-get install squashfs-tools")
	}
	random := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 700<<10)
	for k := range noise {
		noise[k] = byte(random.Uint32())
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(header tar.Header, content []byte) {
		header.Size = int64(len(content))
		header.ModTime = time.Unix(1_600_000_000, 0)
		if err := w.WriteHeader(&header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
		line := fmt.Sprintf("%s %o %d:%d", strings.TrimSuffix(header.Name, "/"), header.Mode, header.Uid, header.Gid)
		switch header.Typeflag {
		case tar.TypeReg:
			line += fmt.Sprintf(" %d %x", len(content), sha256.Sum256(content))
		case tar.TypeSymlink:
			line += " -> " + header.Linkname
		case tar.TypeChar, tar.TypeBlock:
			line += fmt.Sprintf(" %d,%d", header.Devmajor, header.Devminor)
		}
		for _, key := range slices.Sorted(maps.Keys(header.PAXRecords)) {
			line += fmt.Sprintf(" %s=%s", strings.TrimPrefix(key, "SCHILY.xattr."), header.PAXRecords[key])
		}
		lines = append(lines, line)
	}
	add(tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o1777}, nil)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "d/empty", Mode: 0o4755, Uid: 12, Gid: 70000}, nil)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "d/small", Mode: 0o644}, []byte("small"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "d/noise", Mode: 0o600}, noise)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "d/blocks", Mode: 0o600}, noise[:256<<10])
	add(tar.Header{Typeflag: tar.TypeReg, Name: "d/sparse", Mode: 0o600}, append(append(noise[:300<<10:300<<10], make([]byte, 600<<10)...), "end"...))
	add(tar.Header{Typeflag: tar.TypeSymlink, Name: "d/link", Linkname: "../else/where", Mode: 0o777}, nil)
	add(tar.Header{Typeflag: tar.TypeChar, Name: "d/char", Mode: 0o666, Devmajor: 300, Devminor: 70000}, nil)
	add(tar.Header{Typeflag: tar.TypeBlock, Name: "d/block", Mode: 0o660, Devmajor: 8, Devminor: 1}, nil)
	add(tar.Header{Typeflag: tar.TypeFifo, Name: "d/fifo", Mode: 0o620}, nil)
	add(tar.Header{Typeflag: tar.TypeReg, Name: "d/attributes", Mode: 0o644, PAXRecords: map[string]string{
		"SCHILY.xattr.user.long": strings.Repeat("long ", 300), "SCHILY.xattr.user.same": "value of two",
	}}, []byte("with attributes"))
	add(tar.Header{Typeflag: tar.TypeReg, Name: "d/attribute", Mode: 0o644, PAXRecords: map[string]string{"SCHILY.xattr.user.same": "value of two"}}, nil)
	add(tar.Header{Typeflag: tar.TypeDir, Name: "many/", Mode: 0o755}, nil)
	for k := range 1500 { // more than one block of a directory, in several headers
		add(tar.Header{Typeflag: tar.TypeReg, Name: fmt.Sprintf("many/file-%04d", k), Mode: 0o644}, []byte(strings.Repeat("x", k)))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "image")
	command := exec.Command("mksquashfs", append([]string{"-", path, "-tar", "-quiet", "-no-progress"}, arguments...)...)
	command.Stdin = &archive
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	slices.Sort(lines)
	return path, lines
}

func open(t *testing.T, path string) *Image {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { file.Close() })
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	image, err := Open(file, info.Size(), budget.Budget{})
	if err != nil {
		t.Fatal(err)
	}
	return image
}

// byParts reads a file through the places that Parts returns. It keeps the last
// fragment in tails.
func byParts(image *Image, n Inode, tails map[int64][]byte) ([]byte, error) {
	parts, err := image.Parts(n)
	if err != nil {
		return nil, err
	}
	unpacker, err := NewUnpacker(image.Packing())
	if err != nil {
		return nil, err
	}
	content := make([]byte, n.Size)
	for _, p := range parts {
		block := make([]byte, p.Block.Size)
		if err := image.readAt(block, p.Block.Offset); err != nil {
			return nil, err
		}
		if tail := tails[p.Block.Offset]; tail != nil {
			block = tail
		} else if !p.Block.Plain {
			if block, err = unpacker.Unpack(block); err != nil {
				return nil, err
			}
		}
		if p.At == 0 && p.Size < image.blockSize {
			clear(tails)
			tails[p.Block.Offset] = block
		}
		if int64(p.Inner)+int64(p.Size) > int64(len(block)) {
			return nil, fmt.Errorf("a block of %d bytes: %w", len(block), ErrCorrupt)
		}
		copy(content[p.At:], block[p.Inner:][:p.Size])
	}
	return content, nil
}

// read describes an image in the same form as sample.
func read(image *Image) (lines []string, err error) {
	tails := map[int64][]byte{}
	err = image.Walk(func(path string, n Inode) error {
		if path == "." {
			return nil
		}
		line := fmt.Sprintf("%s %o %d:%d", path, n.Mode, n.UID, n.GID)
		switch n.Kind {
		case File:
			hash := sha256.New()
			size, err := io.Copy(hash, image.Content(n))
			if err != nil {
				return fmt.Errorf("read %s: %w", path, err)
			}
			line += fmt.Sprintf(" %d %x", size, hash.Sum(nil))
			if size > 16<<20 {
				break // a damaged image may claim any size
			}
			again, err := byParts(image, n, tails)
			if sum := sha256.Sum256(again); err != nil || !bytes.Equal(sum[:], hash.Sum(nil)) {
				return fmt.Errorf("read %s by its parts: %d bytes, %w", path, len(again), err)
			}
		case Symlink:
			line += " -> " + n.Target
		case Char, Block:
			line += fmt.Sprintf(" %d,%d", n.Major(), n.Minor())
		}
		slices.SortFunc(n.Xattrs, func(a, b Xattr) int { return strings.Compare(a.Name, b.Name) })
		for _, x := range n.Xattrs {
			line += fmt.Sprintf(" %s=%s", x.Name, x.Value)
		}
		lines = append(lines, line)
		return nil
	})
	slices.Sort(lines)
	return lines, err
}

func TestReadImagesOfMksquashfs(t *testing.T) {
	for name, arguments := range map[string][]string{
		"gzip":             {"-comp", "gzip"},
		"xz":               {"-comp", "xz"},
		"zstd":             {"-comp", "zstd"},
		"lz4":              {"-comp", "lz4"},
		"lz4 packed well":  {"-comp", "lz4", "-Xhc"},
		"xz, large blocks": {"-comp", "xz", "-b", "1M"},
		"small blocks":     {"-b", "4096"},
		"no fragments":     {"-no-fragments"},
		"always fragments": {"-always-use-fragments"},
		"nothing packed":   {"-noI", "-noD", "-noF", "-noId"},
	} {
		t.Run(name, func(t *testing.T) {
			path, want := sample(t, arguments...)
			got, err := read(open(t, path))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				for k := range min(len(got), len(want)) {
					if got[k] != want[k] {
						t.Fatalf("%d of %d lines; the first other one: %s\nwant %s", len(got), len(want), got[k], want[k])
					}
				}
				t.Fatalf("%d lines, want %d", len(got), len(want))
			}
		})
	}
}

// TestHardLinks makes an image from a directory, because archives need no hard
// links.
func TestHardLinks(t *testing.T) {
	sample(t) // requires mksquashfs
	dir := t.TempDir()
	one := filepath.Join(dir, "one")
	if err := os.WriteFile(one, []byte("content"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(one, filepath.Join(dir, "two")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "image")
	if out, err := exec.Command("mksquashfs", dir, path, "-quiet", "-no-progress", "-all-root").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	names := map[uint32]int{}
	if err := open(t, path).Walk(func(path string, n Inode) error {
		if path != "." {
			names[n.Number]++
			if n.Links != 2 {
				t.Errorf("%s has %d links", path, n.Links)
			}
		}
		return nil
	}); err != nil || len(names) != 1 {
		t.Errorf("inodes %v, %v", names, err)
	}
}

func TestOtherCompressions(t *testing.T) {
	path, _ := sample(t, "-comp", "lzo")
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(file, info.Size(), budget.Budget{}); err == nil || !strings.Contains(err.Error(), "compressed with lzo") {
		t.Error(err)
	}
}

// TestDamage: a damaged image yields an error or other content, but no crash.
func TestDamage(t *testing.T) {
	path, _ := sample(t, "-b", "64K")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		damaged := slices.Clone(whole)
		for range 1 + random.IntN(4) {
			at := random.IntN(len(damaged))
			if random.IntN(2) == 0 {
				at = random.IntN(superSize)
			} else if random.IntN(2) == 0 {
				at = len(damaged) - 1 - random.IntN(16<<10)
			}
			damaged[at] ^= byte(1 + random.IntN(255))
		}
		damaged = damaged[:len(damaged)-random.IntN(2)*random.IntN(len(damaged))]
		if image, err := Open(bytes.NewReader(damaged), int64(len(damaged)), budget.Budget{}); err == nil {
			_, _ = read(image)
		}
	}
}

func FuzzRead(f *testing.F) {
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("some content, some content"), 0o644); err != nil {
		f.Fatal(err)
	}
	for _, comp := range []string{"gzip", "xz", "zstd", "lz4"} {
		path := filepath.Join(f.TempDir(), "image")
		if err := exec.Command("mksquashfs", dir, path, "-quiet", "-no-progress", "-comp", comp, "-nopad").Run(); err == nil {
			seed, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(seed)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		if image, err := Open(bytes.NewReader(text), int64(len(text)), budget.Budget{}); err == nil {
			_, _ = read(image)
		}
	})
}

func FuzzLZ4(f *testing.F) {
	f.Add([]byte("\x1fa\x01\x00\x05\x50bcdef"))
	f.Fuzz(func(t *testing.T, packed []byte) {
		fuzzbound.Watch(t)
		if out, err := unpackLZ4(nil, packed, minBlock); err == nil && len(out) > minBlock {
			t.Errorf("%d bytes", len(out))
		}
	})
}

func TestXZMemoryIsBoundedByBlock(t *testing.T) {
	for text, want := range map[string]string{
		"": "corrupt",
		"\xfd7zXZ\x00\x00\x01....\x02\x00\x21\x01\x28":         "larger than a block",
		"\xfd7zXZ\x00\x00\x01....\x02\x01\x04\x00\x21":         "filters",
		"\xfd7zXZ\x00\x00\x01....\x02\xc0\x05\x06\x21\x01\x08": "",
	} {
		size, dictionary, err := checkXZ([]byte(text))
		if want == "" && (err != nil || size != 12 || dictionary != 64<<10) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %d, %d, %v, want %q", text, size, dictionary, err, want)
		}
	}
}

// xzOf returns an xz stream with blocks of a given size.
func xzOf(t testing.TB, content []byte, block int64) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := xz.WriterConfig{DictCap: minBlock, BlockSize: block, CheckSum: xz.CRC32}.NewWriter(&out)
	if err == nil {
		_, err = w.Write(content)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// hugeSecond returns a stream whose second block claims a dictionary of 3 GB.
func hugeSecond(t testing.TB) []byte {
	t.Helper()
	packed := xzOf(t, []byte("ab"), 1)
	header := packed[xzStreamHeader:][:12]
	at := xzStreamHeader + len(header)
	at += bytes.Index(packed[at:], header[:4]) // the second block begins with the same header
	second := packed[at:][:12]
	second[4] = 39
	order.PutUint32(second[8:], crc32.ChecksumIEEE(second[:8]))
	return packed
}

func TestXZLargerThanBlock(t *testing.T) {
	content := bytes.Repeat([]byte("some content "), 300)
	good := xzOf(t, content, 1<<20)
	if out, err := unpackXZ(nil, good, minBlock); err != nil || !bytes.Equal(out, content) {
		t.Errorf("%d bytes, %v", len(out), err)
	}
	for at := range good {
		damaged := slices.Clone(good)
		damaged[at] ^= 0x10
		if out, err := unpackXZ(nil, damaged, minBlock); err == nil && !bytes.Equal(out, content) {
			t.Errorf("byte %d: other content", at)
		}
		if out, err := unpackXZ(nil, good[:at], minBlock); err == nil && !bytes.Equal(out, content) {
			t.Errorf("cut to %d: %d bytes", at, len(out))
		}
	}
	for name, packed := range map[string][]byte{"two blocks": xzOf(t, content, 1000), "a huge second one": hugeSecond(t)} {
		if out, err := unpackXZ(nil, packed, minBlock); err == nil || !strings.Contains(err.Error(), "more than one block") {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
}

// FuzzXZ: a block cannot make its reader allocate more memory than a few blocks.
func FuzzXZ(f *testing.F) {
	f.Add(xzOf(f, []byte("some content"), 1<<20))
	f.Add(hugeSecond(f))
	f.Fuzz(func(t *testing.T, packed []byte) {
		fuzzbound.Watch(t)
		if len(packed) > minBlock {
			return // each chunk allocates memory, one after the other
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		out, err := unpackXZ(nil, packed, minBlock)
		runtime.ReadMemStats(&after)
		if err == nil && len(out) > minBlock {
			t.Errorf("%d bytes", len(out))
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 32*maxBlock {
			t.Errorf("it took %d bytes", took)
		}
	})
}
