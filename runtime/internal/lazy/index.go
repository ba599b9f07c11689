package lazy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/containerd/stargz-snapshotter/estargz"
	"github.com/opencontainers/go-digest"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/layer"
)

// chunk is a part of a file.
type chunk struct {
	// Offset and End are the start of its compressed stream in the blob and the
	// start of the next stream. The chunk begins Inner bytes into the unpacked
	// stream.
	Offset int64 `json:"o"`
	End    int64 `json:"e"`
	Inner  int64 `json:"i,omitempty"`
	// At and Size are its place in the layer's file.
	At     int64         `json:"a"`
	Size   int64         `json:"s"`
	Digest digest.Digest `json:"d"`
}

// index is the data kept beside a layer's file.
type index struct {
	Source Source `json:"source"`
	// First is the blob offset where the image's prioritized content ends.
	First int64 `json:"first,omitempty"`
	// Chunks is sorted by the place in the file.
	Chunks []chunk `json:"chunks"`
}

// validate returns an error if lay cannot have placed the chunks like this, because the
// index on disk may be damaged.
func (x index) validate() error {
	var covered int64
	for _, c := range x.Chunks {
		if c.Offset < 0 || c.End <= c.Offset || c.End-c.Offset > 2*maxChunk || c.Inner < 0 || c.Inner > maxChunk ||
			c.Size <= 0 || c.Size > maxChunk || c.At < covered || c.At > math.MaxInt64-maxChunk {
			return fmt.Errorf("chunk of %d bytes at %d of the index is impossible", c.Size, c.At)
		}
		covered = c.At + c.Size
		if err := c.Digest.Validate(); err != nil {
			return fmt.Errorf("chunk at %d of the index has no digest: %w", c.At, err)
		}
	}
	return nil
}

const (
	// endSize is the size of the first request, for the end of a blob. It usually
	// covers the whole table of contents.
	endSize = 256 << 10
	// maxPacked bounds the compressed table, in bytes.
	maxPacked = 64 << 20
	// maxContent bounds the total size of a layer's files, in bytes. While a layer is laid
	// out, the checksums of its blocks are in memory, four bytes for each.
	maxContent = 128 << 30
	// maxChunk bounds the unpacked size of a chunk in bytes, because it is unpacked in
	// memory.
	maxChunk = 64 << 20
)

// Extensions of the files beside a layer's file: its index, and the state of each chunk.
const (
	indexExtension = ".lazy"
	haveExtension  = ".have"
)

// packedTable is the compressed table of contents of a blob, and the blob offset where
// the content ends.
type packedTable struct {
	source Source
	packed []byte
	end    int64
}

// Make makes the file of a layer at a new path, without its content. The source names
// the blob and the login; contents is the digest of the blob's table of contents. If it
// fails, it leaves nothing.
func Make(ctx context.Context, path string, source Source, login Login, contents digest.Digest, b budget.Budget) error {
	return makeFor(ctx, path, source, login, contents, b, &budget.Image{})
}

// makeFor makes the file of a layer as Make does, and counts what it uses against the
// limits of image.
func makeFor(ctx context.Context, path string, source Source, login Login, contents digest.Digest, b budget.Budget, image *budget.Image) error {
	// No refused ranges: this process is in the pods' network, which enforces them.
	r := newRemote(source, nil, func() (Login, error) { return login, nil })
	table, err := r.contents(ctx, maxPacked)
	if err != nil {
		return err
	}
	return table.make(path, contents, b, image)
}

// make makes the file of the layer if the digest of the table is the wanted one.
func (t packedTable) make(path string, want digest.Digest, b budget.Budget, image *budget.Image) (err error) {
	defer func() {
		if err != nil {
			for _, extension := range []string{"", indexExtension, haveExtension} {
				_ = os.Remove(path + extension)
			}
		}
	}()
	table, err := parseContents(t.packed, want, t.count(b))
	if err != nil {
		return fmt.Errorf("read table of contents: %w", err)
	}
	most := t.count(b).Of(image)
	defer func() {
		if err != nil {
			most.Drop() // another registry may give the layer
		}
	}()
	chunks, err := lay(path, table, t.end, most)
	if err != nil {
		return fmt.Errorf("lay out layer of %s: %w", t.source.URL, err)
	}
	text, err := json.Marshal(index{t.source, first(table), chunks})
	if err == nil {
		err = os.WriteFile(path+haveExtension, make([]byte, len(chunks)), 0o600)
	}
	if err == nil {
		err = os.WriteFile(path+indexExtension, text, 0o600)
	}
	return err
}

// count returns a new count for what the table claims.
func (t packedTable) count(b budget.Budget) *budget.Layer {
	return b.Table(int64(len(t.packed)), t.source.Size)
}

// contents requests the table of contents. A table of more than most compressed
// bytes is an error.
func (r *remote) contents(ctx context.Context, most int64) (t packedTable, err error) {
	tail, err := r.readEnd(ctx, endSize)
	if err != nil {
		return t, err
	}
	if len(tail) < estargz.FooterSize {
		return t, errors.New("read table of contents: the blob is too short")
	}
	_, at, _, err := new(estargz.GzipDecompressor).ParseFooter(tail[len(tail)-estargz.FooterSize:])
	if err != nil {
		return t, fmt.Errorf("read table of contents: %w", err)
	}
	end := r.Size - estargz.FooterSize
	if at <= 0 || at >= end || end-at > most {
		return t, fmt.Errorf("read table of contents: its offset %d in a blob of %d bytes is impossible, or it is too large", at, r.Size)
	}
	begin := r.Size - int64(len(tail))
	if at < begin {
		front, err := r.read(ctx, at, begin)
		if err != nil {
			return t, err
		}
		tail, begin = append(front, tail...), at
	}
	return packedTable{r.Source, tail[at-begin : end-begin], at}, nil
}

// first returns the blob offset of the landmark file; the content before it is
// prioritized. It returns 0 if there is none.
// https://github.com/containerd/stargz-snapshotter/blob/main/docs/estargz.md#prioritized-files-and-landmark-files
func first(table *estargz.JTOC) int64 {
	for _, e := range table.Entries {
		if e.Type == "reg" && layer.Clean(e.Name) == estargz.PrefetchLandmark {
			return e.Offset
		}
	}
	return 0
}

func parseContents(packed []byte, want digest.Digest, most *budget.Layer) (*estargz.JTOC, error) {
	if err := want.Validate(); err != nil {
		return nil, fmt.Errorf("digest %q: %w", want, err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	z.Multistream(false)
	archive := tar.NewReader(z)
	header, err := archive.Next()
	if err != nil {
		return nil, err
	}
	if header.Name != estargz.TOCTarName {
		return nil, fmt.Errorf("%q of %d bytes is not a table of contents", header.Name, header.Size)
	}
	if err := most.Keep(int(header.Size)); err != nil {
		return nil, err
	}
	text := make([]byte, header.Size)
	if _, err := io.ReadFull(archive, text); err != nil {
		return nil, err
	}
	if own := want.Algorithm().FromBytes(text); own != want {
		return nil, fmt.Errorf("it is %s, not %s as the image says", own, want)
	}
	if err := most.TableText(text); err != nil {
		return nil, err
	}
	return parseTable(text)
}

func parseTable(text []byte) (*estargz.JTOC, error) {
	table := &estargz.JTOC{}
	if err := json.Unmarshal(text, table); err != nil {
		return nil, err
	}
	if table.Version != 1 {
		return nil, fmt.Errorf("it is of version %d", table.Version)
	}
	var size int64
	for _, e := range table.Entries {
		if e == nil {
			return nil, errors.New("it has an empty entry")
		}
		if e.Type != "reg" {
			continue
		}
		if e.Size < 0 || e.Size > maxContent-size {
			return nil, fmt.Errorf("its files have more than %d bytes", int64(maxContent))
		}
		size += e.Size
	}
	return table, nil
}

// lay writes the file of a layer with space for the content of its files, and
// returns the places of the chunks.
func lay(path string, table *estargz.JTOC, end int64, most *budget.Layer) (chunks []chunk, err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	// of is the file that the next chunks belong to. without is the last file if it has
	// no content.
	var of, without *estargz.TOCEntry
	var begin, covered int64
	add := func(e *estargz.TOCEntry) error {
		size := e.ChunkSize
		if size == 0 {
			size = of.Size - e.ChunkOffset
		}
		if e.ChunkOffset != covered || size <= 0 || size > maxChunk || covered+size > of.Size || e.Offset < 0 || e.Offset >= end || e.InnerOffset < 0 || e.InnerOffset > maxChunk {
			return fmt.Errorf("chunk of %d bytes at %d of %q is impossible", size, e.ChunkOffset, of.Name)
		}
		d := digest.Digest(e.ChunkDigest)
		if err := d.Validate(); err != nil {
			return fmt.Errorf("chunk at %d of %q has no digest: %w", e.ChunkOffset, of.Name, err)
		}
		chunks = append(chunks, chunk{Offset: e.Offset, Inner: e.InnerOffset, At: begin + covered, Size: size, Digest: d})
		covered += size
		return nil
	}
	whole := func() error {
		if of != nil && covered != of.Size {
			return fmt.Errorf("%q has %d bytes, but its chunks have %d", of.Name, of.Size, covered)
		}
		of = nil
		return nil
	}
	err = layer.Lay(file, most, func(put func(*tar.Header) (int64, error)) error {
		for _, e := range table.Entries {
			if e.Type == "chunk" {
				if without != nil && e.Name == without.Name {
					continue
				}
				if of == nil || e.Name != of.Name {
					return fmt.Errorf("chunk of %q, which is not a file", e.Name)
				}
				if err := add(e); err != nil {
					return err
				}
				continue
			}
			if err := whole(); err != nil {
				return err
			}
			header, err := headerOf(e)
			if err != nil {
				return err
			}
			at, err := put(header)
			if err != nil {
				return err
			}
			without = nil
			if at == 0 && e.Type == "reg" {
				without = e // an empty file, or a whiteout
			} else if e.Type == "reg" {
				of, begin, covered = e, at, 0
				if err := add(e); err != nil {
					return err
				}
			}
		}
		return whole()
	})
	if err != nil {
		return nil, err
	}
	if err := setEnds(chunks, end); err != nil {
		return nil, err
	}
	slices.SortFunc(chunks, func(a, b chunk) int { return int(min(max(a.At-b.At, -1), 1)) })
	return chunks, checkOrder(chunks)
}

// checkOrder checks that chunks in the order of the layer's file are also in the order of
// the blob. Then each stream is unpacked only once. A table could otherwise list the chunks
// of one stream backwards, and the stream would be unpacked for each of them.
func checkOrder(chunks []chunk) error {
	for i, c := range chunks[min(1, len(chunks)):] {
		if before := chunks[i]; c.Offset < before.Offset || c.Offset == before.Offset && c.Inner < before.Inner+before.Size {
			return fmt.Errorf("chunks at %d and %d of the blob are in the wrong order, or overlap", before.Offset, c.Offset)
		}
	}
	return nil
}

// setEnds sets the end of the stream of each chunk: where the next stream begins, or
// end for the last one.
func setEnds(chunks []chunk, end int64) error {
	begins := []int64{end}
	for _, c := range chunks {
		begins = append(begins, c.Offset)
	}
	slices.Sort(begins)
	for i, c := range chunks {
		chunks[i].End = begins[sort.Search(len(begins), func(k int) bool { return begins[k] > c.Offset })]
		if chunks[i].End-c.Offset > 2*maxChunk {
			return fmt.Errorf("a stream of %d bytes is too long", chunks[i].End-c.Offset)
		}
	}
	return nil
}

var kinds = map[string]byte{
	"dir": tar.TypeDir, "reg": tar.TypeReg, "symlink": tar.TypeSymlink, "hardlink": tar.TypeLink,
	"char": tar.TypeChar, "block": tar.TypeBlock, "fifo": tar.TypeFifo,
}

// headerOf returns the header of an entry in the layer's archive.
func headerOf(e *estargz.TOCEntry) (*tar.Header, error) {
	kind, known := kinds[e.Type]
	if !known {
		return nil, fmt.Errorf("%q is of unknown type %q", e.Name, e.Type)
	}
	// A name that is not UTF-8 cannot be represented in JSON.
	if strings.ContainsRune(e.Name+e.LinkName, utf8.RuneError) {
		return nil, fmt.Errorf("%q stands for a name that is not UTF-8", e.Name)
	}
	header := &tar.Header{
		Typeflag: kind, Name: e.Name, Linkname: e.LinkName, Mode: e.Mode, Uid: e.UID, Gid: e.GID,
		Devmajor: int64(e.DevMajor), Devminor: int64(e.DevMinor), PAXRecords: map[string]string{},
	}
	if kind == tar.TypeReg {
		header.Size = e.Size
	}
	if e.ModTime3339 != "" {
		if err := header.ModTime.UnmarshalText([]byte(e.ModTime3339)); err != nil {
			return nil, fmt.Errorf("time of %q: %w", e.Name, err)
		}
	}
	for name, value := range e.Xattrs {
		header.PAXRecords["SCHILY.xattr."+name] = string(value)
	}
	return header, nil
}
