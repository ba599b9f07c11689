package imagecache

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/distribution/reference"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/imagestore"
	"berth.dev/berth/runtime/internal/layercache"
)

// Form is the packing of an archive's layers.
type Form string

const (
	// Plain layers are not compressed.
	Plain Form = "plain"
	// EStargz layers are gzip files with a table of contents, which lets a reader
	// fetch single files. With the table the layer has another digest.
	EStargz Form = "estargz"
	// Zstd layers contain the archives unchanged.
	Zstd Form = "zstd"
)

// ParseForm parses a form that users may ask for: estargz or zstd.
func ParseForm(text string) (Form, error) {
	if form := Form(text); form == EStargz || form == Zstd {
		return form, nil
	}
	return "", fmt.Errorf("pack layers as %q: give estargz or zstd", text)
}

// Converted describes an image that was written to an archive.
type Converted struct {
	Name   string
	Digest digest.Digest
	// Bytes is the total size of the image's packed layers.
	Bytes  int64
	Layers int
}

// Convert writes an archive with an OCI layout, with layers in another packing. The
// source names an image in the cache, or an archive. Of an archive, Convert converts all
// images for the platform. For a cached image, the content of the layers stays the same,
// but not their digests, as with Export.
func (p *Populator) Convert(ctx context.Context, source string, form Form, path string) (converted []Converted, err error) {
	if a, is, err := archiveOf(source); err != nil {
		return nil, err
	} else if is {
		return converted, p.open(ctx, a, func(blobs content.Provider, found []images.Image) error {
			var sources []packable
			for _, img := range found {
				source, err := p.packed(ctx, blobs, img)
				if err != nil {
					return fmt.Errorf("convert %s from %s: %w", img.Name, a.Path, err)
				}
				sources = append(sources, source)
			}
			if converted, err = writeImages(ctx, path, form, sources, p.Progress); err != nil {
				return fmt.Errorf("convert %s: %w", a.Path, err)
			}
			return nil
		})
	}
	image, err := p.named(source)
	if err != nil {
		return nil, err
	}
	from, err := p.cached(image)
	if err == nil {
		converted, err = writeImages(ctx, path, form, []packable{from}, p.Progress)
	}
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", image.Name, err)
	}
	return converted, nil
}

// archiveOf reports whether the user means an archive, or a folder with an OCI
// layout, instead of an image name.
func archiveOf(source string) (a imagestore.Archive, is bool, err error) {
	if a, err = imagestore.ParseArchive(source); err != nil {
		return a, false, err
	}
	info, err := os.Stat(a.Path)
	switch {
	case err != nil:
		// No image name begins with these characters.
		return a, a.Name != "" || strings.ContainsAny(source[:1], "./"), nil
	case !info.IsDir():
		return a, true, nil
	}
	_, err = os.Stat(filepath.Join(a.Path, ocispec.ImageIndexFile))
	return a, err == nil || a.Name != "" || strings.ContainsAny(source[:1], "./"), nil
}

// named finds a cached image by a name as users type it.
func (p *Populator) named(name string) (layercache.Image, error) {
	ref, err := reference.ParseDockerRef(name)
	if err != nil {
		return layercache.Image{}, fmt.Errorf("parse image name %q, which is not an archive either: %w", name, err)
	}
	image, err := p.Named(ref.String())
	if errors.Is(err, layercache.ErrNoImage) {
		err = fmt.Errorf("%w, nor is there an archive of that name", err)
	}
	return image, err
}

// Named returns the cached image with a full name for the platform. If the user named no
// platform, and there is no image for this machine's, it returns the most recent image.
func (p *Populator) Named(name string) (layercache.Image, error) {
	all, err := p.Cache.OfName(name)
	if err != nil {
		return layercache.Image{}, err
	}
	image, found := layercache.Best(all, platforms.Only(p.Platform))
	if found {
		return image, nil
	}
	if p.Chosen {
		own, err := platforms.Parse(all[0].Platform)
		if err == nil {
			err = p.checkPlatform(own)
		}
		return all[0], fmt.Errorf("find image %s: %w", name, err)
	}
	return all[0], nil
}

// packed returns an image of an archive, to be packed again. Its layers are verified
// while they are read.
func (p *Populator) packed(ctx context.Context, blobs content.Provider, img images.Image) (packable, error) {
	source := packable{name: img.Name}
	manifest, config, err := p.describe(img.Target, func(desc ocispec.Descriptor, parsed any) (err error) {
		if source.config, err = fetchText(ctx, provided{blobs}, desc, p.Budget); err != nil {
			return err
		}
		if err := json.Unmarshal(source.config, parsed); err != nil {
			return fmt.Errorf("parse %s: %w", desc.Digest, err)
		}
		return nil
	})
	if err != nil {
		return source, err
	}
	if err := p.Budget.CheckLayers(len(manifest.Layers)); err != nil {
		return source, err
	}
	ids := config.RootFS.DiffIDs
	image := &budget.Image{}
	for i, blob := range manifest.Layers {
		if err := errors.Join(blob.Digest.Validate(), ids[i].Validate()); err != nil {
			return source, err
		}
		if !images.IsLayerType(blob.MediaType) {
			return source, fmt.Errorf("layer %s is of type %q, which is not a layer", blob.Digest, blob.MediaType)
		}
		source.layers = append(source.layers, unpacked{id: ids[i], size: blob.Size, write: func(ctx context.Context, to io.Writer, count func(int)) error {
			return decompress(ctx, blobs, blob, ids[i], to, p.Budget.Stream(blob.Size).Of(image), count)
		}})
	}
	return source, nil
}

// decompress writes the uncompressed content of a blob, and then checks the digests of
// the blob and of the content.
func decompress(ctx context.Context, blobs content.Provider, blob ocispec.Descriptor, id digest.Digest, to io.Writer, most *budget.Layer, count func(int)) error {
	from, err := provided{blobs}.Fetch(ctx, blob)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("the archive has no content of digest %s: it is damaged, or not complete", blob.Digest)
	}
	if err != nil {
		return err
	}
	defer from.Close()
	checked := &verified{from: from, verifier: blob.Digest.Verifier(), count: count}
	archive, err := imagestore.Decompress(most.Packed(checked), most)
	if err != nil {
		return err
	}
	defer archive.Close()
	own := id.Verifier()
	if _, err := io.Copy(io.MultiWriter(to, own), archive); err != nil {
		return err
	}
	// The digest covers the data after the archive, too.
	if _, err := io.Copy(io.Discard, checked); err != nil {
		return err
	}
	switch {
	case !checked.verifier.Verified():
		return errors.New("its content has another digest")
	case !own.Verified():
		return fmt.Errorf("uncompressed, it is not %s, as the image says", id)
	}
	return nil
}

// writeImages writes an archive of images. It replaces the file at path only when
// it is complete.
func writeImages(ctx context.Context, path string, form Form, sources []packable, progress func(more, total int64)) (written []Converted, err error) {
	replaced, err := os.Stat(path)
	mode := fs.FileMode(0o666) // less the umask
	if err == nil {
		if !replaced.Mode().IsRegular() {
			return nil, &fs.PathError{Op: "write", Path: path, Err: errors.New("it is there, and is not a file")}
		}
		mode = replaced.Mode().Perm()
	}
	temporary, err := os.OpenFile(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"-"+rand.Text()), os.O_CREATE|os.O_EXCL|os.O_RDWR, mode)
	if err != nil {
		return nil, err
	}
	defer func() {
		// It may be closed already.
		_ = temporary.Close()
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(temporary.Name()))
		}
	}()
	p := packer{ctx: ctx, form: form, to: newArchiveWriter(temporary), done: map[digest.Digest]packedLayer{}, progress: progress}
	once := map[digest.Digest]bool{}
	for _, source := range sources {
		for _, l := range source.layers {
			if !once[l.id] {
				once[l.id] = true
				p.total += l.size
			}
		}
	}
	progress(0, p.total)
	for _, source := range sources {
		one, err := p.image(source)
		if err != nil {
			return nil, err
		}
		written = append(written, one)
	}
	if err := p.to.close(); err != nil {
		return nil, err
	}
	if replaced != nil {
		if err := temporary.Chmod(mode); err != nil {
			return nil, err
		}
	}
	// Some file systems report at Close that they are full.
	if err := temporary.Close(); err != nil {
		return nil, err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return nil, err
	}
	return written, nil
}

// packer packs the layers of images into an archive.
type packer struct {
	ctx  context.Context
	form Form
	to   *archiveWriter
	// done maps the uncompressed digest of a layer to the packed layer.
	done map[digest.Digest]packedLayer
	// came counts the bytes of the sources that were read, of total bytes.
	came, total int64
	progress    func(more, total int64)
}

// packedLayer is a layer in an archive. id is its uncompressed digest.
type packedLayer struct {
	desc ocispec.Descriptor
	id   digest.Digest
}

func (p *packer) image(source packable) (Converted, error) {
	one := Converted{Name: source.name, Layers: len(source.layers)}
	blobs, ids := []ocispec.Descriptor{}, []digest.Digest{}
	for _, l := range source.layers {
		made, again := p.done[l.id]
		if !again {
			var err error
			if made, err = p.layer(l); err != nil {
				return one, fmt.Errorf("layer %s: %w", l.id, err)
			}
			p.done[l.id] = made
		}
		blobs, ids = append(blobs, made.desc), append(ids, made.id)
		one.Bytes += made.desc.Size
	}
	config, err := withLayers(source.config, ids)
	if err == nil {
		one.Digest, err = p.to.image(source.name, config, blobs)
	}
	return one, err
}

func (p *packer) layer(l unpacked) (made packedLayer, err error) {
	begin := p.came
	count := func(n int) {
		// The count may exceed the expected size.
		more := min(int64(n), begin+l.size-p.came)
		p.came += more
		if more > 0 {
			p.progress(more, p.total)
		}
	}
	write := func(to io.Writer) error {
		return l.write(p.ctx, stoppable{p.ctx, to}, count)
	}
	var annotations map[string]string
	mediaType := ocispec.MediaTypeImageLayer
	made.desc, err = p.to.blob(func(to io.Writer) (err error) {
		switch p.form {
		case EStargz:
			mediaType = ocispec.MediaTypeImageLayerGzip
			made.id, annotations, err = packEStargz(to, write)
		case Zstd:
			mediaType = ocispec.MediaTypeImageLayerZstd
			made.id, err = packZstd(to, write)
		default:
			h := sha256.New()
			err = write(io.MultiWriter(to, h))
			made.id = digest.NewDigest(digest.SHA256, h)
		}
		return err
	})
	made.desc.MediaType, made.desc.Annotations = mediaType, annotations
	if rest := begin + l.size - p.came; rest > 0 && err == nil {
		p.came += rest
		p.progress(rest, p.total)
	}
	return made, err
}

// stoppable is a writer that fails once ctx has ended.
type stoppable struct {
	ctx context.Context
	to  io.Writer
}

func (s stoppable) Write(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.to.Write(p)
}

func packZstd(to io.Writer, write func(io.Writer) error) (digest.Digest, error) {
	z, err := zstd.NewWriter(to)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	if err := write(io.MultiWriter(z, h)); err != nil {
		_ = z.Close() // ends its goroutines; its error has the same cause
		return "", err
	}
	return digest.NewDigest(digest.SHA256, h), z.Close()
}

const (
	// leastStream is the number of packed bytes that share a stream. With a
	// stream for each file, a Python image is a tenth larger. A reader of a small
	// file also fetches the bytes before it in the stream, which are fewer than
	// one request fetches.
	leastStream = 128 << 10
	// chunkSize is the size of the parts of a large file, in unpacked bytes. A reader
	// of one byte fetches the whole part. The library's default is four times as much.
	chunkSize = 1 << 20
	// gzipLevel packs as densely as level 6 of zlib, the usual level of layers.
	// Level 9 would save another percent and take four times as long.
	gzipLevel = 7
)

// packEStargz packs a layer as eStargz. Unlike estargz.Build it adds no landmark,
// which would be one more file for every runtime that unpacks the layer. It keeps
// the order of files.
func packEStargz(to io.Writer, write func(io.Writer) error) (id digest.Digest, annotations map[string]string, err error) {
	compressor := &fastGzip{GzipCompressor: estargz.NewGzipCompressor()}
	w := estargz.NewWriterWithCompressor(to, compressor)
	w.ChunkSize, w.MinChunkSize = chunkSize, leastStream
	reader, writer := io.Pipe()
	var group errgroup.Group
	group.Go(func() error {
		err := write(writer)
		writer.CloseWithError(err)
		return err
	})
	err = w.AppendTar(reader)
	reader.CloseWithError(err)
	// The error of reading the layer is more precise.
	if failed := group.Wait(); failed != nil && (err == nil || !errors.Is(failed, err)) {
		err = failed
	}
	if err != nil {
		return "", nil, err
	}
	contents, err := w.Close()
	return digest.Digest(w.DiffID()), map[string]string{
		estargz.TOCJSONDigestAnnotation:         contents.String(),
		estargz.StoreUncompressedSizeAnnotation: strconv.FormatInt(compressor.size, 10),
	}, err
}

// fastGzip compresses as well as the library's own writer in less time, and counts
// the bytes.
type fastGzip struct {
	*estargz.GzipCompressor
	size int64
}

func (f *fastGzip) Writer(to io.Writer) (estargz.WriteFlushCloser, error) {
	z, err := gzip.NewWriterLevel(to, gzipLevel)
	return &countedGzip{z, &f.size}, err
}

func (f *fastGzip) WriteTOCAndFooter(to io.Writer, off int64, contents *estargz.JTOC, h hash.Hash) (digest.Digest, error) {
	return f.GzipCompressor.WriteTOCAndFooter(to, off, contents, countedHash{h, &f.size})
}

type countedGzip struct {
	*gzip.Writer
	size *int64
}

func (c *countedGzip) Write(p []byte) (int, error) {
	*c.size += int64(len(p))
	return c.Writer.Write(p)
}

type countedHash struct {
	hash.Hash
	size *int64
}

func (c countedHash) Write(p []byte) (int, error) {
	*c.size += int64(len(p))
	return c.Hash.Write(p)
}

// withLayers returns a configuration with other layers. It keeps all other fields,
// including unknown ones.
func withLayers(config []byte, ids []digest.Digest) ([]byte, error) {
	var fields map[string]json.RawMessage
	err := json.Unmarshal(config, &fields)
	if err == nil && fields == nil {
		err = errors.New("it is empty")
	}
	if err != nil {
		return nil, fmt.Errorf("parse the image's configuration: %w", err)
	}
	if fields["rootfs"], err = json.Marshal(ocispec.RootFS{Type: "layers", DiffIDs: ids}); err != nil {
		return nil, err
	}
	return json.Marshal(fields)
}
