package budget_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/corpus"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/imagecache"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/inplace"
	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/layercache"
	"berth.dev/berth/runtime/internal/layerfile"
	"berth.dev/berth/runtime/internal/lazy"
)

const (
	// maxMemory and maxCPU bound the process that reads a bomb. maxSize bounds a bomb:
	// a larger one may use more.
	maxMemory = 200 << 20
	maxCPU    = 10 * time.Second
	maxSize   = 8 << 20
)

// A bomb is a small file that claims much.
type bomb struct {
	// write writes it, and read reads it as the program does.
	write func(io.Writer) error
	read  func(ctx context.Context, path string) error
	// limit is in the error.
	limit string
}

var bombs = map[string]bomb{
	"large file": {gzipped(func(w io.Writer) error {
		return archived(w, func(to *tar.Writer) error {
			return to.WriteHeader(&tar.Header{Name: "large", Typeflag: tar.TypeReg, Size: 6 << 30})
		})
	}), readLayer, "MB, unpacked from"},
	"layer that ends in zeros": {zstandard(func(w io.Writer) error {
		err := files(1, func(int) *tar.Header { return &tar.Header{Name: "a", Typeflag: tar.TypeReg} })(w)
		if err == nil {
			_, err = io.CopyN(w, zeros{}, 9<<30/2)
		}
		return err
	}), readLayer, "MB, unpacked from"},
	"sparse file": {func(w io.Writer) error {
		_, err := io.WriteString(w, sparse(1<<40))
		return err
	}, readLayer, "MB, unpacked from"},
	"files": {zstandard(files(1<<18, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeReg}
	})), readLayer, "MB of names, links and attributes"},
	"owners": {zstandard(files(1<<18, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeReg, Uid: 1000 + i}
	})), readLayer, "MB of names, links and attributes"},
	"targets of links": {zstandard(files(1<<14, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("t", 4000), Format: tar.FormatPAX}
	})), readLayer, "MB of names, links and attributes"},
	"hard links to nothing": {zstandard(files(1<<14, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeLink, Linkname: fmt.Sprint(i) + strings.Repeat("t", 2000), Format: tar.FormatPAX}
	})), readLayer, "MB of names, links and attributes"},
	"directories in paths": {gzipped(files(1<<10, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprint(i) + strings.Repeat("/d", 2000), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	})), readLayer, "MB of names, links and attributes"},
	"attributes of directories": {zstandard(files(1<<15, func(i int) *tar.Header {
		return &tar.Header{
			Name: fmt.Sprint(i) + "/", Typeflag: tar.TypeDir, Format: tar.FormatPAX,
			PAXRecords: map[string]string{"SCHILY.xattr.user.a": strings.Repeat("v", 2500)},
		}
	})), readLayer, "MB of names, links and attributes"},
	"long path": {files(1, func(int) *tar.Header {
		return &tar.Header{Name: strings.Repeat("d/", 1<<17), Typeflag: tar.TypeDir, Format: tar.FormatPAX}
	}), readLayer, "4096 bytes of a path"},
	"deep paths": {zstandard(files(1<<15, func(i int) *tar.Header {
		return &tar.Header{Name: strings.Repeat("d/", 1900) + fmt.Sprint(i), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	})), readLayer, "MB of names, links and attributes"},
	"links back and forth": {gzipped(files(1<<18, func(i int) *tar.Header {
		if i < 40 {
			return &tar.Header{Name: fmt.Sprintf("l%d", i), Typeflag: tar.TypeSymlink, Linkname: strings.Repeat("d/../", 700) + fmt.Sprintf("l%d", i+1), Format: tar.FormatPAX}
		}
		return &tar.Header{Name: "l3/f", Typeflag: tar.TypeReg}
	})), readLayer, "names in the paths of its files"},
	"whiteouts": {zstandard(files(1<<18, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprintf("d/.wh.%d", i), Typeflag: tar.TypeReg}
	})), readLayer, "MB of names, links and attributes"},
	"entries that directories of a layer's file share": {func(w io.Writer) error {
		_, err := w.Write(corpus.SharedEntries(40_000, 40_000))
		return err
	}, readLayerFile, "MB of names, links and attributes"},
	"records of headers": {zstandard(func(w io.Writer) error {
		// Each header has 170,000 records, and belongs to no file.
		for range 600 {
			records := strings.Repeat("6 a=b\n", 170_000)
			if _, err := w.Write(append(header("pax", tar.TypeXHeader, len(records)), records...)); err != nil {
				return err
			}
			if err := write(w, strings.Repeat("\x00", 511-(len(records)-1)%512)); err != nil {
				return err
			}
		}
		return nil
	}), readLayer, "MB of headers, unpacked from"},
	"window of zstd": {func(w io.Writer) error {
		_, err := w.Write([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 19 << 3, 1, 0, 0})
		return err
	}, readLayer, "MB of memory to unpack"},
	"table of contents of nothing": {toc(repeated(`{"version":1,"entries":[{}`, ",{}", "]}", 1<<22)), readTable, "MB of names, links and attributes"},
	"long table of contents":       {toc(repeated(`{"version":1,"entries":[{"name":"`, "a", `"}]}`, 200<<20)), readTable, "MB of names, links and attributes"},
	"content of a table of contents": {toc(func(w io.Writer) error {
		_, err := io.WriteString(w, `{"version":1,"entries":[`)
		for i := range 2000 {
			if err == nil {
				_, err = fmt.Fprintf(w, `{"name":"%d","type":"reg","size":67000000,"offset":1,"chunkDigest":"%s"},`, i, digest.FromString(""))
			}
		}
		return errors.Join(err, write(w, `{"name":"last","type":"dir"}]}`))
	}), readTable, "MB, unpacked from"},
	"images of docker save":         {text("manifest.json", `[{}`, ",{}", "]", 2<<20), readArchive, "values in a manifest"},
	"images of docker save, packed": {gzipped(text("manifest.json", `[{}`, ",{}", "]", 5<<20)), readArchive, "bytes of a manifest"},
	"index":                         {text("index.json", `{"manifests":[{}`, ",{}", "]}", 2<<20), readArchive, "values in a manifest"},
	"index, packed":                 {gzipped(text("index.json", `{"manifests":[{}`, ",{}", "]}", 2<<20)), readArchive, "values in a manifest"},
	"names in an archive": {zstandard(files(1<<18, func(i int) *tar.Header {
		return &tar.Header{Name: fmt.Sprint(i), Typeflag: tar.TypeSymlink, Linkname: "a"}
	})), readArchive, "MB of names, links and attributes"},
	"archive of zeros": {zstandard(func(w io.Writer) error {
		return archived(w, func(to *tar.Writer) error {
			if err := to.WriteHeader(&tar.Header{Name: "blobs/sha256/a", Typeflag: tar.TypeReg, Size: 6 << 30}); err != nil {
				return err
			}
			_, err := io.CopyN(to, zeros{}, 1<<20)
			return err
		})
	}), readArchive, "MB, unpacked from"},
	"one configuration for many images": {func(w io.Writer) error {
		config := `{"config":{"Labels":{"a":"` + strings.Repeat("b", 7<<20) + `"}},"rootfs":{"diff_ids":[]}}`
		var saved strings.Builder
		saved.WriteString(`[{"Config":"c"}`)
		for range 10_000 {
			saved.WriteString(`,{"Config":"c"}`)
		}
		saved.WriteString("]")
		return archived(w, func(to *tar.Writer) error {
			return errors.Join(put(to, "c", config), put(to, "manifest.json", saved.String()))
		})
	}, readArchive, "MB of manifests and configurations"},
	"layer in an archive":       {saved(1 << 40), readArchive, "import image docker.io/library/app:1 from "},
	"layer in a packed archive": {gzipped(saved(1 << 40)), readArchive, "bring layer sha256:"},
	"layers together":           {saved(1<<30, 1<<30+1, 1<<30+2, 1<<30+3), readArchive, "MB in all layers of the image or archive, unpacked from"},
	"sparse file of a SIF file": {sif, readSIF, "MB, unpacked from"},
	"SIF file as an archive":    {sif, readArchive, "MB, unpacked from"},
	"layers of docker save": {func(w io.Writer) error {
		return archived(w, func(to *tar.Writer) error {
			config := `{"rootfs":{"diff_ids":[]}}`
			return errors.Join(put(to, "c", config), put(to, "manifest.json", `[{"Config":"c","Layers":["a"`+strings.Repeat(`,"a"`, 500)+`]}]`))
		})
	}, readArchive, "500 layers"},
}

// Every bomb fails within the limits on time and memory, with an error that names the
// file, the limit and the option.
func TestBombsFail(t *testing.T) {
	for name, b := range bombs {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "bomb")
			file, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			to := bufio.NewWriterSize(file, 1<<20)
			if err := errors.Join(b.write(to), to.Flush(), file.Close()); err != nil {
				t.Fatal(err)
			}
			info, err := os.Stat(path)
			if err != nil || info.Size() > maxSize {
				t.Fatalf("the bomb has %d bytes, %v", info.Size(), err)
			}
			command := exec.CommandContext(t.Context(), os.Args[0])
			command.Env = append(os.Environ(), "BERTH_BOMB="+name, "BERTH_BOMB_FILE="+path, "TMPDIR="+dir)
			var problem bytes.Buffer
			command.Stderr = &problem
			output, err := command.Output()
			if err != nil {
				t.Fatalf("%d bytes: %v: %s", info.Size(), err, &problem)
			}
			var u used
			if err := json.Unmarshal(output, &u); err != nil {
				t.Fatalf("%v: %s", err, output)
			}
			for _, want := range []string{b.limit, "the image exceeds its budget", "--image-budget 2"} {
				if !strings.Contains(u.Error, want) {
					t.Errorf("want %q: %s", want, u.Error)
				}
			}
			if u.Memory > maxMemory {
				t.Errorf("it took %d MB of memory", u.Memory>>20)
			}
			t.Logf("%d bytes: %d MB of memory, %v of CPU time: %.300s", info.Size(), u.Memory>>20, command.ProcessState.UserTime()+command.ProcessState.SystemTime(), u.Error)
		})
	}
}

// used holds the error of a reader, and the peak of its memory in bytes.
type used struct {
	Error  string
	Memory int64
}

func TestMain(m *testing.M) {
	b, found := bombs[os.Getenv("BERTH_BOMB")]
	if !found {
		os.Exit(m.Run())
	}
	if err := readBomb(b, os.Getenv("BERTH_BOMB_FILE")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// readBomb reads a bomb, and prints what that used. The kernel ends the process where it
// takes too long.
func readBomb(b bomb, path string) error {
	seconds := uint64(maxCPU.Seconds())
	if err := unix.Setrlimit(unix.RLIMIT_CPU, &unix.Rlimit{Cur: seconds, Max: seconds}); err != nil {
		return err
	}
	err := b.read(context.Background(), path)
	if !errors.Is(err, budget.ErrExceeded) {
		return fmt.Errorf("the reader returns: %w", err)
	}
	memory, problem := peak()
	if problem != nil {
		return problem
	}
	return json.NewEncoder(os.Stdout).Encode(used{err.Error(), memory})
}

// peak returns the most memory that this process had. The peak in its resource usage
// would include its parent's.
func peak() (int64, error) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	var kilobytes int64
	_, err = fmt.Sscanf(rest, "%d kB", &kilobytes)
	return kilobytes << 10, err
}

func readLayer(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	_, err = layerfile.Convert(ctx, path+".layer", file, 0, budget.Budget{}.Layer(info.Size()))
	return err
}

func readArchive(ctx context.Context, path string) error {
	cache, err := layercache.Open(path+".cache", "job", 10<<30, func(string) {})
	if err != nil {
		return err
	}
	p := imagecache.Populator{Cache: cache, Platform: platforms.DefaultSpec(), Progress: func(int64, int64) {}}
	_, err = p.Import(ctx, imagestore.Archive{Path: path})
	if err == nil || !strings.Contains(err.Error(), path) {
		return fmt.Errorf("an error that does not name the archive: %w", err)
	}
	return err
}

func readTable(ctx context.Context, path string) error {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, path) }))
	defer server.Close()
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	own := make([]byte, digestSize)
	if _, err := io.ReadFull(file, own); err != nil {
		return err
	}
	return lazy.Make(ctx, path+".layer", lazy.Source{URL: server.URL}, lazy.Login{}, digest.Digest(own), budget.Budget{})
}

func readLayerFile(_ context.Context, path string) error {
	image, file, err := erofs.OpenFile(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return layer.Archive(image, io.Discard, budget.Budget{}.Layer(image.Size()))
}

func readSIF(_ context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = inplace.Make(path+".layer", file, budget.Budget{})
	return err
}
