package budget_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/corpus"
)

// zeros is endless.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func gzipped(write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		to := gzip.NewWriter(w)
		return errors.Join(write(to), to.Close())
	}
}

func zstandard(write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		to, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
		if err != nil {
			return err
		}
		return errors.Join(write(to), to.Close())
	}
}

// archived writes an archive that may be cut off.
func archived(w io.Writer, write func(*tar.Writer) error) error {
	to := tar.NewWriter(w)
	err := write(to)
	_ = to.Flush() // it reports what is cut off
	return err
}

func put(to *tar.Writer, name, content string) error {
	if err := to.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Size: int64(len(content))}); err != nil {
		return err
	}
	_, err := io.WriteString(to, content)
	return err
}

// files writes an archive of files without content.
func files(count int, header func(int) *tar.Header) func(io.Writer) error {
	return func(w io.Writer) error {
		to := tar.NewWriter(w)
		for i := range count {
			if err := to.WriteHeader(header(i)); err != nil {
				return err
			}
		}
		return to.Close()
	}
}

// text writes an archive with a text that repeats its middle, and a layout if the text
// is one of a layout.
func text(name, begin, middle, end string, count int) func(io.Writer) error {
	return func(w io.Writer) error {
		to := tar.NewWriter(w)
		err := put(to, name, begin+strings.Repeat(middle, count)+end)
		if name == ocispec.ImageIndexFile {
			err = errors.Join(err, put(to, ocispec.ImageLayoutFile, `{"imageLayoutVersion":"1.0.0"}`))
		}
		return errors.Join(err, to.Close())
	}
}

// header returns a header of an archive that no writer makes.
func header(name string, kind byte, size int) []byte {
	b := make([]byte, 512)
	copy(b, name)
	copy(b[100:], "0000644\x000000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x0000000000000\x00        ", size))
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}

// sparse returns an archive of a sparse file of size bytes, all of them a hole.
func sparse(size int64) string {
	var records strings.Builder
	for _, record := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=hole", fmt.Sprintf("GNU.sparse.realsize=%d", size)} {
		fmt.Fprintf(&records, "%d %s\n", len(record)+4, record)
	}
	block := func(text string) []byte { return append([]byte(text), make([]byte, 512-len(text)%512)...) }
	return string(bytes.Join([][]byte{header("pax", tar.TypeXHeader, records.Len()), block(records.String()), header("hole", tar.TypeReg, 512), block(fmt.Sprintf("1\n%d\n0\n", size)), make([]byte, 1024)}, nil))
}

// digestSize is the size of a digest. Blobs of toc begin with one.
const digestSize = len("sha256:") + 2*sha256.Size

// toc writes a blob of eStargz with a table of contents.
func toc(table func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		size, sum := &counter{}, sha256.New()
		if err := table(io.MultiWriter(size, sum)); err != nil {
			return err
		}
		err := write(w, digest.NewDigest(digest.SHA256, sum).String())
		packed := gzip.NewWriter(w)
		to := tar.NewWriter(packed)
		err = errors.Join(err, to.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "stargz.index.json", Size: size.n}))
		if err == nil {
			err = table(to)
		}
		err = errors.Join(err, to.Close(), packed.Close())
		// https://github.com/containerd/stargz-snapshotter/blob/main/docs/estargz.md#footer
		subfield := fmt.Sprintf("%016xSTARGZ", digestSize)
		footer, _ := gzip.NewWriterLevel(w, gzip.NoCompression)
		footer.Extra = append(binary.LittleEndian.AppendUint16([]byte("SG"), uint16(len(subfield))), subfield...)
		return errors.Join(err, footer.Close())
	}
}

type counter struct{ n int64 }

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return len(p), nil
}

func write(w io.Writer, text string) error {
	_, err := io.WriteString(w, text)
	return err
}

// repeated writes a text that repeats its middle.
func repeated(begin, middle, end string, count int) func(io.Writer) error {
	return func(w io.Writer) error {
		err := write(w, begin)
		const atOnce = 1 << 16
		many := strings.Repeat(middle, atOnce)
		for range count / atOnce {
			err = errors.Join(err, write(w, many))
		}
		return errors.Join(err, write(w, end))
	}
}

// saved writes an archive of docker save with layers of one sparse file each, of sizes in
// bytes.
func saved(sizes ...int64) func(io.Writer) error {
	return func(w io.Writer) error {
		return archived(w, func(to *tar.Writer) error {
			var layers, ids []string
			var err error
			for i, size := range sizes {
				layer := sparse(size)
				layers, ids = append(layers, fmt.Sprintf(`"l%d"`, i)), append(ids, fmt.Sprintf("%q", digest.FromString(layer)))
				err = errors.Join(err, put(to, fmt.Sprintf("l%d", i), layer))
			}
			config := fmt.Sprintf(`{"os":"linux","architecture":%q,"rootfs":{"diff_ids":[%s]}}`, runtime.GOARCH, strings.Join(ids, ","))
			manifest := fmt.Sprintf(`[{"Config":"c","Layers":[%s],"RepoTags":["app:1"]}]`, strings.Join(layers, ","))
			return errors.Join(err, put(to, "c", config), put(to, "manifest.json", manifest))
		})
	}
}

// sif writes a SIF file with a sparse file of 3 GiB.
func sif(w io.Writer) error {
	dir, err := os.MkdirTemp("", "sif")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "sif")
	if err := corpus.SIF(path, []byte(sparse(6<<30))); err != nil {
		return err
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	_, err = w.Write(content)
	return err
}
