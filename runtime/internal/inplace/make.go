// Package inplace makes layers of SIF files without copying content. The image of such a
// layer has names, owners and all other metadata. Content is read from the SIF file, block
// by block, only when a container reads it. Package sif parses SIF files and their
// configuration.
//
// If the SIF file has changed, reads fail. They never return other content.
package inplace

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/sif"
	"berth.dev/berth/runtime/internal/squashfs"
)

// Identity distinguishes a file from other files, and from itself before a change.
type Identity struct {
	Path     string    `json:"path"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Inode    uint64    `json:"inode"`
}

// identify returns the identity of an open file. It makes a network file system ask
// the server: an NFS client's cached attributes may be a minute old.
func identify(file *os.File) (Identity, error) {
	var st unix.Statx_t
	err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_TYPE|unix.STATX_SIZE|unix.STATX_MTIME|unix.STATX_INO, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("it is not a regular file")
	}
	if err != nil {
		return Identity{}, fmt.Errorf("look at %s: %w", file.Name(), err)
	}
	return Identity{Size: int64(st.Size), Modified: time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec)).UTC(), Inode: st.Ino}, nil
}

func (i Identity) same(other Identity) bool {
	return i.Size == other.Size && i.Inode == other.Inode && i.Modified.Equal(other.Modified)
}

// header begins the list of parts.
type header struct {
	Source  Identity
	Packing squashfs.Packing
	Parts   int
}

const (
	// indexExtension is the extension of the list of parts, beside the image.
	indexExtension = ".sif"
	// folder is the snapshotter's subdirectory for the layers made here, by the
	// digests of the layers that represent them.
	folder    = "inplace"
	layerFile = "layer"
	// partSize is the size of a part in the list, in bytes.
	partSize = 28
	// plain is set in the packed size of a block that is not compressed.
	plain = 1 << 31
	// maxParts bounds the list in memory. It suffices for a terabyte of content in
	// blocks of the usual size.
	maxParts = 8 << 20
	// maxHeader bounds the list's first line, in bytes.
	maxHeader = 64 << 10
)

var (
	order      = binary.LittleEndian
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
)

// Made describes a layer that was made.
type Made struct {
	Config ocispec.Image
	Source Identity
}

// Make makes the image of a SIF file's layer at a new path, and beside it the list of the
// places of its content. It works within the limits of b. If it fails, it leaves nothing.
func Make(path string, file *os.File, b budget.Budget) (made Made, err error) {
	defer func() {
		if err != nil {
			_, _ = os.Remove(path), os.Remove(path+indexExtension)
		}
	}()
	if made.Source, err = identify(file); err != nil {
		return made, err
	}
	if made.Source.Path, err = filepath.Abs(file.Name()); err != nil {
		return made, err
	}
	image, err := sif.Open(file, made.Source.Size, b)
	if err != nil {
		return made, err
	}
	l := &list{sum: crc32.New(castagnoli)}
	if made.Config, err = l.lay(path, image); err != nil {
		return made, err
	}
	if err := l.write(path+indexExtension, header{made.Source, image.Packing(), l.count}); err != nil {
		return made, err
	}
	after, err := identify(file)
	if err == nil && !after.same(made.Source) {
		err = errors.New("it changed while it was read")
	}
	return made, err
}

// list is the list of parts while it is being written.
type list struct {
	text  []byte
	count int
	sum   hash.Hash32
}

// lay writes the image, and records its parts.
func (l *list) lay(path string, image *sif.File) (config ocispec.Image, err error) {
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400)
	if err != nil {
		return config, err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	return image.Lay(to, func(p sif.Part) error {
		if l.count++; l.count > maxParts {
			return fmt.Errorf("more than %d blocks: %w", maxParts, sif.ErrTooLarge)
		}
		packed := p.Block.Size
		if p.Block.Plain {
			packed |= plain
		}
		l.text = order.AppendUint64(l.text, uint64(p.At))
		l.text = order.AppendUint64(l.text, uint64(p.Block.Offset))
		for _, n := range []uint32{packed, p.Inner, p.Size} {
			l.text = order.AppendUint32(l.text, n)
		}
		return nil
	})
}

// write writes a header, the parts, and a checksum of both.
func (l *list) write(path string, h header) error {
	text, err := json.Marshal(h)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	l.sum.Write(text)
	l.sum.Write(l.text)
	text = append(text, l.text...)
	return os.WriteFile(path, order.AppendUint32(text, l.sum.Sum32()), 0o400)
}

// part locates a part of a file's content. at is its offset in the layer's image, and size
// its size in bytes. The part begins inner bytes into an unpacked block. The block is at
// offset in the SIF file, and packed is its packed size, with the flag plain.
type part struct {
	at, offset          int64
	packed, inner, size uint32
}

// readList reads the list of parts, sorted by their offset in the layer's image. The error
// for a damaged list wraps errDamaged, or io.ErrUnexpectedEOF if it ends early.
func readList(path string) (h header, parts []part, err error) {
	file, err := os.Open(path)
	if err != nil {
		return h, nil, err
	}
	defer file.Close()
	sum := crc32.New(castagnoli)
	buffered := bufio.NewReaderSize(file, maxHeader)
	line, err := buffered.ReadSlice('\n')
	if err == nil {
		sum.Write(line)
		err = json.Unmarshal(line, &h)
	}
	if err != nil || h.Parts < 0 || h.Parts > maxParts {
		return h, nil, fmt.Errorf("read list of blocks: %w", errors.Join(errDamaged, err))
	}
	parts = make([]part, h.Parts)
	var b [partSize]byte
	end := int64(0)
	for k := range parts {
		if _, err := io.ReadFull(buffered, b[:]); err != nil {
			return h, nil, fmt.Errorf("read list of blocks: %w", err)
		}
		sum.Write(b[:])
		p := part{int64(order.Uint64(b[0:])), int64(order.Uint64(b[8:])), order.Uint32(b[16:]), order.Uint32(b[20:]), order.Uint32(b[24:])}
		if p.at < end || p.size == 0 {
			return h, nil, fmt.Errorf("read list of blocks: %w", errDamaged)
		}
		end = p.at + int64(p.size)
		parts[k] = p
	}
	if _, err := io.ReadFull(buffered, b[:4]); err != nil || order.Uint32(b[:]) != sum.Sum32() {
		return h, nil, fmt.Errorf("read list of blocks: %w", errors.Join(errDamaged, err))
	}
	return h, parts, nil
}

// Keep puts a new layer where Place finds it by the digest of its placeholder. A layer
// that is already there is the same.
func Keep(made, snapshotter string, placeholder digest.Digest) error {
	if err := placeholder.Validate(); err != nil {
		return err
	}
	dir := filepath.Join(snapshotter, folder, placeholder.Encoded())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The image comes last: once it exists, both do.
	for _, extension := range []string{indexExtension, ""} {
		if err := os.Link(made+extension, filepath.Join(dir, layerFile+extension)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// Place puts the layer that a placeholder's digest represents at a new path. It returns
// false if the digest represents no layer.
func Place(snapshotter string, placeholder digest.Digest, path string) (bool, error) {
	if snapshotter == "" || placeholder.Validate() != nil {
		return false, nil
	}
	kept := filepath.Join(snapshotter, folder, placeholder.Encoded(), layerFile)
	if _, err := os.Stat(kept); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	for _, extension := range []string{indexExtension, ""} {
		if err := os.Link(kept+extension, path+extension); err != nil {
			return false, fmt.Errorf("use a SIF file in place: %w", err)
		}
	}
	return true, nil
}
