package inplace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/fuzzbound"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/tree"
)

// sifOf makes a SIF file with the content of an archive, and returns its path.
func sifOf(t testing.TB, archive []byte, arguments ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image.sif")
	err := corpus.SIF(path, archive, arguments...)
	if errors.Is(err, exec.ErrNotFound) && !strings.Contains(os.Getenv("BERTH_CI"), "squashfs") {
		t.Skip("needs mksquashfs: apt-get install squashfs-tools")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func makeLayer(t testing.TB, path string) string {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	made := filepath.Join(t.TempDir(), "layer")
	if _, err := Make(made, file, budget.Budget{}); err != nil {
		t.Fatal(err)
	}
	return made
}

func open(t testing.TB, made string, changed func(error)) (*File, *erofs.Image) {
	t.Helper()
	f, err := Open(made, nil, changed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	image, err := f.Image()
	if err != nil {
		t.Fatal(err)
	}
	return f, image
}

// lines describes all files of a layer's image.
func lines(image *erofs.Image) (all []string, err error) {
	var walk func(number uint64, name string) error
	walk = func(number uint64, name string) error {
		n, err := image.Inode(number)
		if err != nil {
			return err
		}
		xattrs, err := image.Xattrs(n)
		if err != nil {
			return err
		}
		slices.SortFunc(xattrs, func(a, b erofs.Xattr) int { return strings.Compare(a.Name, b.Name) })
		line := fmt.Sprintf("%q %o %d:%d links %d device %d %d %.300q", name, n.Mode, n.UID, n.GID, n.Links, n.Device, n.Seconds, xattrs)
		switch n.Mode & erofs.TypeMask {
		case erofs.TypeDir:
			entries, _, err := image.Directory(n)
			if err != nil {
				return err
			}
			for _, e := range entries {
				if err := walk(e.Number, name+"/"+e.Name); err != nil {
					return err
				}
			}
		case erofs.TypeRegular:
			if n.Size > 64<<20 {
				return errors.New("too large for a test")
			}
			content := make([]byte, n.Size)
			if _, err := image.ReadAt(n, content, 0); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			line += fmt.Sprint(n.Size, digest.FromBytes(content))
		case erofs.TypeSymlink:
			target, err := image.Link(n)
			if err != nil {
				return err
			}
			line += target
		}
		all = append(all, line)
		return nil
	}
	return all, walk(erofs.Root, "")
}

// In-place reads return the content of the archive that the SIF file was made
// from.
func TestEqualsArchive(t *testing.T) {
	layers, err := corpus.Layers()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := corpus.ForSquashfs(layers[0])
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "whole"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := layer.Convert(bytes.NewReader(archive), file, budget.Budget{}.Layer(0)); err != nil {
		t.Fatal(err)
	}
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	whole, err := erofs.Open(file, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	want, err := lines(whole)
	if err != nil {
		t.Fatal(err)
	}
	for name, arguments := range map[string][]string{
		"gzip": {"-comp", "gzip"}, "zstd": {"-comp", "zstd", "-b", "1M"}, "lz4": {"-comp", "lz4"}, "xz": {"-comp", "xz"},
		"small blocks": {"-b", "4096"}, "fragments of all": {"-always-use-fragments"}, "nothing packed": {"-noI", "-noD", "-noF"},
	} {
		made := makeLayer(t, sifOf(t, archive, arguments...))
		_, image := open(t, made, nil)
		got, err := lines(image)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// The root's own time and owner are mksquashfs's.
		if d := corpus.Difference(got[:len(got)-1], want[:len(want)-1]); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		var st unix.Stat_t
		if err := unix.Stat(made, &st); err != nil || st.Blocks*512 > 2<<20 {
			t.Errorf("%s: the layer takes %d bytes, of content of %d; %v", name, st.Blocks*512, len(archive), err)
		}
	}
}

func read(image *erofs.Image, name string) ([]byte, error) {
	all, err := tree.New([]*erofs.Image{image})
	if err != nil {
		return nil, err
	}
	n, err := all.Lookup(tree.RootID, name)
	if err != nil {
		return nil, err
	}
	content := make([]byte, n.Size)
	_, err = all.ReadAt(n, content, 0)
	return content, err
}

// A changed file gives errors, and reports the change once. A file that was
// removed or replaced while open stays readable.
func TestChanges(t *testing.T) {
	want := corpus.Noise(1, 3<<20)
	archive := corpus.Pack(t, map[string][]byte{"large": want})
	for name, bad := range map[string]struct {
		do   func(path string) error
		stay bool
	}{
		"cut":     {func(path string) error { return os.Truncate(path, 1<<20) }, false},
		"grown":   {func(path string) error { return os.Truncate(path, 9<<20) }, false},
		"touched": {func(path string) error { return os.Chtimes(path, time.Now(), time.Now().Add(time.Hour)) }, false},
		"removed": {os.Remove, true},
		"replaced": {func(path string) error {
			return errors.Join(os.WriteFile(path+".new", nil, 0o600), os.Rename(path+".new", path))
		}, true},
		"a pipe":   {func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) }, true},
		"shut off": {func(path string) error { return os.Chmod(path, 0) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			path := sifOf(t, archive)
			made := makeLayer(t, path)
			var reported []error
			f, image := open(t, made, func(err error) { reported = append(reported, err) })
			if err := bad.do(path); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				content, err := read(image, "large")
				if bad.stay && (err != nil || !bytes.Equal(content, want)) {
					t.Errorf("%d bytes, %v", len(content), err)
				}
				if !bad.stay && !errors.Is(err, ErrChanged) {
					t.Errorf("%d bytes, %v", len(content), err)
				}
			}
			if (len(reported) == 0) != bad.stay || len(reported) > 1 {
				t.Errorf("told %v", reported)
			}
			// A successor with the descriptor, and one without.
			fd, err := unix.Dup(int(f.Source().Fd()))
			if err != nil {
				t.Fatal(err)
			}
			again, err := Open(made, os.NewFile(uintptr(fd), "kept"), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			image, err = again.Image()
			if err != nil {
				t.Fatal(err)
			}
			if content, err := read(image, "large"); bad.stay != (err == nil && bytes.Equal(content, want)) {
				t.Errorf("a successor: %d bytes, %v", len(content), err)
			}
			if other, err := Open(made, nil, nil); err == nil && (name != "shut off" || os.Getuid() != 0) {
				t.Error("it can be opened anew", other.Close())
			}
		})
	}
}

// Reads of storage that fails for a moment are tried again, and a file that its
// server has forgotten is opened again. Lasting failures are errors, reported
// once, and the next read tries again.
func TestFailingStorage(t *testing.T) {
	want := corpus.Noise(2, 1<<20)
	path := sifOf(t, corpus.Pack(t, map[string][]byte{"large": want}))
	var reported []error
	f, image := open(t, makeLayer(t, path), func(err error) { reported = append(reported, err) })
	f.pause = func(time.Duration) {}
	var mu sync.Mutex
	failures, with := 0, error(nil)
	f.readAt = func(file *os.File, into []byte, at int64) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		if failures > 0 {
			failures--
			return 0, with
		}
		return file.ReadAt(into, at)
	}
	for _, c := range []struct {
		failures int
		with     error
		ok       bool
	}{{2, syscall.EIO, true}, {1, syscall.ESTALE, true}, {1 << 20, syscall.EIO, false}, {0, nil, true}} {
		f.cache = cache{}
		was := f.Source()
		failures, with = c.failures, c.with
		content, err := read(image, "large")
		if c.ok && (err != nil || !bytes.Equal(content, want)) || !c.ok && !errors.Is(err, c.with) {
			t.Errorf("%d times %v: %d bytes, %v", c.failures, c.with, len(content), err)
		}
		if reopened := f.Source() != was; reopened != errors.Is(c.with, syscall.ESTALE) {
			t.Errorf("%d times %v: opened anew %v", c.failures, c.with, reopened)
		}
		if (len(reported) > 0) == c.ok {
			t.Errorf("%d times %v: told %v", c.failures, c.with, reported)
		}
		reported = nil
	}
}

// A file that another host removes gives lasting errors of several kinds. They are
// reported once, and further reads do not wait for each page.
func TestLongFailingStorage(t *testing.T) {
	for _, with := range []error{syscall.ENOENT, syscall.ESTALE, syscall.EIO} {
		t.Run(with.Error(), func(t *testing.T) {
			path := sifOf(t, corpus.Pack(t, map[string][]byte{"large": corpus.Noise(2, 1<<20)}))
			var reported []error
			f, image := open(t, makeLayer(t, path), func(err error) { reported = append(reported, err) })
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			now, pauses, fails := time.Now(), 0, true
			f.now = func() time.Time { return now }
			f.pause = func(time.Duration) { pauses++ }
			f.readAt = func(file *os.File, into []byte, at int64) (int, error) {
				if fails {
					return 0, with
				}
				return file.ReadAt(into, at)
			}
			waited := 0
			for k := range 100 {
				if _, err := read(image, "large"); err == nil {
					t.Fatal("no error")
				}
				if k == 0 {
					waited = pauses
				}
			}
			if waited == 0 || pauses != waited {
				t.Errorf("waited %d times for the first error, %d times for all", waited, pauses)
			}
			if len(reported) != 1 || !strings.Contains(reported[0].Error(), path) {
				t.Errorf("told %v", reported)
			}
			// Later it is tried with patience again.
			now = now.Add(failsFast)
			if _, err := read(image, "large"); err == nil || pauses != 2*waited || len(reported) != 1 {
				t.Errorf("%v, waited %d times, told %v", err, pauses, reported)
			}
			fails = false
			if _, err := read(image, "large"); err != nil || f.isFailing() {
				t.Errorf("it does not recover: %v", err)
			}
		})
	}
}

func TestClose(t *testing.T) {
	f, image := open(t, makeLayer(t, sifOf(t, corpus.Pack(t, map[string][]byte{"large": corpus.Noise(2, 1<<20)}))), func(err error) { t.Error(err) })
	f.pause = func(time.Duration) { t.Error("a read waits") }
	for range 2 {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := f.reopen(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("it is opened again: %v", err)
	}
	if err := f.read(make([]byte, 10), 0); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if _, err := read(image, "large"); err == nil {
		t.Error("it can be read")
	}
}

// Many read small files at once, which lie in few blocks: each is unpacked about
// once, and what is in memory stays bounded.
func TestManyAtOnce(t *testing.T) {
	files := map[string][]byte{}
	for k := range 2000 {
		files[fmt.Sprintf("file-%04d", k)] = corpus.Noise(uint64(k), 3000)
	}
	f, image := open(t, makeLayer(t, sifOf(t, corpus.Pack(t, files))), nil)
	var mu sync.Mutex
	asked := 0
	f.readAt = func(file *os.File, into []byte, at int64) (int, error) {
		mu.Lock()
		asked++
		mu.Unlock()
		return file.ReadAt(into, at)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			for name, want := range files {
				if content, err := read(image, name); err != nil || !bytes.Equal(content, want) {
					t.Errorf("%s: %d bytes, %v", name, len(content), err)
				}
			}
		})
	}
	group.Wait()
	if f.cache.size > maxCached || taken(f) > maxCached || asked > 100 {
		t.Errorf("%d bytes in memory, said to be %d, %d reads", taken(f), f.cache.size, asked)
	}
}

// taken returns the memory that the blocks take.
func taken(f *File) (bytes int) {
	for _, b := range f.cache.blocks {
		bytes += cap(b.data)
	}
	return bytes
}

// Blocks are unpacked into the memory of the largest one, and take less once they are
// kept.
func TestSmallBlocksUseLittleMemory(t *testing.T) {
	files := map[string][]byte{}
	for k := range 300 {
		files[fmt.Sprintf("file-%04d", k)] = bytes.Repeat(corpus.Noise(uint64(k), 100), 40)
	}
	for _, comp := range []string{"gzip", "lz4", "xz", "zstd"} {
		f, image := open(t, makeLayer(t, sifOf(t, corpus.Pack(t, files), "-comp", comp, "-b", "1M", "-no-fragments")), nil)
		for name, want := range files {
			if content, err := read(image, name); err != nil || !bytes.Equal(content, want) {
				t.Fatalf("%s, %s: %d bytes, %v", comp, name, len(content), err)
			}
		}
		if n := len(f.cache.blocks); n != len(files) || taken(f) > maxCached || f.cache.size < taken(f) {
			t.Errorf("%s: %d blocks take %d bytes, said to be %d", comp, n, taken(f), f.cache.size)
		}
	}
}

func TestCacheForgets(t *testing.T) {
	var c cache
	for k := range 20 {
		for range 2 {
			data, err := c.get(place{int64(k), 1}, func() ([]byte, error) { return make([]byte, 1<<20), nil })
			if err != nil || len(data) != 1<<20 {
				t.Error(len(data), err)
			}
		}
	}
	if c.size != maxCached || len(c.blocks) != maxCached>>20 || c.blocks[place{19, 1}] == nil {
		t.Errorf("%d bytes in %d blocks", c.size, len(c.blocks))
	}
	c = cache{}
	for k := range 1 << 12 { // blocks of a byte; many of them would fit
		if _, err := c.get(place{int64(k), 1}, func() ([]byte, error) { return make([]byte, 1, 64), nil }); err != nil {
			t.Error(err)
		}
	}
	if len(c.blocks) > maxCached/minBlock {
		t.Errorf("%d blocks of a byte", len(c.blocks))
	}
}

// A list of blocks that storage has changed is refused.
func TestDamagedList(t *testing.T) {
	made := makeLayer(t, sifOf(t, corpus.Pack(t, map[string][]byte{"a": corpus.Noise(1, 300000), "b": corpus.Noise(2, 5)})))
	text, err := os.ReadFile(made + indexExtension)
	if err != nil {
		t.Fatal(err)
	}
	for at := range text {
		damaged := slices.Clone(text)
		damaged[at] ^= 0x10
		path := filepath.Join(t.TempDir(), "layer")
		if err := errors.Join(os.WriteFile(path+indexExtension, damaged, 0o600), os.Link(made, path)); err != nil {
			t.Fatal(err)
		}
		if f, err := Open(path, nil, nil); err == nil {
			f.Close()
			t.Fatalf("byte %d", at)
		}
	}
}

func TestKeepAndPlace(t *testing.T) {
	path := sifOf(t, corpus.Pack(t, map[string][]byte{"small": []byte("text")}))
	root, placeholder := t.TempDir(), digest.FromString("x")
	target := filepath.Join(t.TempDir(), "target")
	if placed, err := Place(root, placeholder, target); placed || err != nil {
		t.Errorf("%v, %v", placed, err)
	}
	for range 2 {
		if err := Keep(makeLayer(t, path), root, placeholder); err != nil {
			t.Fatal(err)
		}
	}
	if placed, err := Place(root, placeholder, target); !placed || err != nil || !Is(target) {
		t.Errorf("%v, %v", placed, err)
	}
	_, image := open(t, target, nil)
	if content, err := read(image, "small"); err != nil || string(content) != "text" {
		t.Errorf("%q, %v", content, err)
	}
}

// FuzzMake: whatever a SIF file holds, there is an error or a tree.
func FuzzMake(f *testing.F) {
	for _, comp := range []string{"gzip", "lz4"} {
		seed, err := os.ReadFile(sifOf(f, corpus.Pack(f, map[string][]byte{"a": bytes.Repeat([]byte("text "), 2000), "d/b": []byte("b")}), "-comp", comp, "-b", "4096", "-nopad"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(seed)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		fuzzbound.Watch(t)
		path := filepath.Join(dir, "image.sif")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		made := filepath.Join(t.TempDir(), "layer")
		if _, err := Make(made, file, budget.Budget{}); err != nil {
			if left, _ := filepath.Glob(made + "*"); len(left) > 0 {
				t.Errorf("%v, and left %q", err, left)
			}
			return
		}
		_, image := open(t, made, nil)
		_, _ = lines(image)
	})
}
