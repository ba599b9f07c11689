package erofs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
)

// Image is an image open for reading. It is safe for concurrent use.
type Image struct {
	from io.ReaderAt
	size int64
	// name is the path of the image, for errors about limits; "" if it is unknown.
	name string
	directoryLimits
	// HasXattrs is set if an inode may have extended attributes other than trusted ones.
	HasXattrs bool
}

// Root is the number of the root's inode.
const Root = rootOffset / slotSize

// Inode holds the metadata of an inode.
type Inode struct {
	Number uint64
	Meta   // without Xattrs
	Links  uint32
	Size   int64

	layout uint16
	start  int64 // offset in the image of the data in whole blocks
	xattrs int   // size of the extended attributes in bytes
}

// OpenFile opens the image in a file. The caller closes the file after the last use
// of the image.
func OpenFile(path string) (*Image, *os.File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil {
		var image *Image
		if image, err = Open(file, info.Size()); err == nil {
			image.name = path
			return image, file, nil
		}
	}
	file.Close()
	return nil, nil, fmt.Errorf("%s: %w", path, err)
}

// Open returns the image in the first size bytes of from.
func Open(from io.ReaderAt, size int64) (*Image, error) {
	blocks, size, err := openChecked(from, size)
	if err != nil {
		return nil, err
	}
	return open(blocks, size)
}

// open opens an image of size bytes, without its checksums.
func open(from io.ReaderAt, size int64) (*Image, error) {
	var b [superSize]byte
	if size < 2*BlockSize {
		return nil, fmt.Errorf("open image of %d bytes: %w", size, ErrCorrupt)
	}
	if _, err := from.ReadAt(b[:], superOffset); err != nil {
		return nil, fmt.Errorf("read superblock: %w", err)
	}
	volume := string(bytes.TrimRight(b[64:80], "\x00"))
	switch {
	case order.Uint32(b[0:]) != magic || volume != volumePlain && volume != volumeXattrs:
		return nil, fmt.Errorf("read superblock: not written by this program: %w", ErrCorrupt)
	case b[12] != blockBits || order.Uint16(b[14:]) != Root || order.Uint32(b[40:]) != 0 || order.Uint32(b[80:]) != 0:
		return nil, fmt.Errorf("read superblock: of another kind: %w", ErrCorrupt)
	case int64(order.Uint32(b[36:]))*BlockSize != size:
		return nil, fmt.Errorf("read superblock: the image has %d blocks, the file %d bytes: %w", order.Uint32(b[36:]), size, ErrCorrupt)
	}
	image := &Image{from: from, size: size, directoryLimits: defaultLimits, HasXattrs: volume == volumeXattrs}
	root, err := image.Inode(Root)
	if err == nil && !root.IsDir() {
		err = fmt.Errorf("read root: not a directory: %w", ErrCorrupt)
	}
	if err != nil {
		return nil, err
	}
	return image, nil
}

// RootXattrs returns the extended attributes of an image's root. It verifies no
// checksums, so use the result only in messages.
func RootXattrs(from io.ReaderAt) ([]Xattr, error) {
	var b [superSize]byte
	if _, err := from.ReadAt(b[:], superOffset); err != nil {
		return nil, fmt.Errorf("read superblock: %w", err)
	}
	image, err := open(from, int64(order.Uint32(b[36:]))*BlockSize)
	if err != nil {
		return nil, err
	}
	root, err := image.Inode(Root)
	if err != nil {
		return nil, err
	}
	return image.Xattrs(root)
}

// Numbers returns a number larger than that of every inode.
func (i *Image) Numbers() uint64 { return uint64(i.size) / slotSize }

// Size returns the size of the blocks in bytes.
func (i *Image) Size() int64 { return i.size }

// IsDir reports whether the inode is a directory.
func (n Inode) IsDir() bool { return n.Mode&TypeMask == TypeDir }

// MultiplyLimits multiplies the limits on directories. Call it before the first read.
func (i *Image) MultiplyLimits(times int) { i.multiply(times) }

// MaxEntries returns the limit on the entries of a directory.
func (i *Image) MaxEntries() int { return i.maxEntries }

// Inode reads an inode.
func (i *Image) Inode(number uint64) (Inode, error) {
	if number < Root || number >= i.Numbers() {
		return Inode{}, fmt.Errorf("read inode %d: there is none: %w", number, ErrCorrupt)
	}
	var b [inodeSize]byte
	if _, err := i.from.ReadAt(b[:], int64(number)*slotSize); err != nil {
		return Inode{}, fmt.Errorf("read inode %d: %w", number, err)
	}
	format := order.Uint16(b[0:])
	n := Inode{
		Number: number,
		Meta: Meta{
			Mode: order.Uint16(b[4:]), UID: order.Uint32(b[24:]), GID: order.Uint32(b[28:]),
			Seconds: int64(order.Uint64(b[32:])), Nanoseconds: order.Uint32(b[40:]),
		},
		Links:  order.Uint32(b[linksOffset:]),
		Size:   int64(order.Uint64(b[8:])),
		layout: format >> 1,
	}
	if count := int(order.Uint16(b[2:])); count > 0 {
		n.xattrs = xattrHeaderSize + 4*(count-1)
	}
	switch n.Mode & TypeMask {
	case TypeRegular, TypeDir, TypeSymlink:
		n.start = int64(order.Uint32(b[16:])) * BlockSize
	case TypeChar, TypeBlock:
		n.Device = order.Uint32(b[16:])
	}
	if err := i.check(n, format); err != nil {
		return Inode{}, fmt.Errorf("read inode %d: %w: %w", number, err, ErrCorrupt)
	}
	return n, nil
}

// check returns an error if the inode is malformed or a part of it is outside the image.
func (i *Image) check(n Inode, format uint16) error {
	whole, tail := n.split()
	at := int64(n.Number)*slotSize + inodeSize + int64(n.xattrs)
	switch kind := n.Mode & TypeMask; {
	case format&1 == 0 || n.layout != layoutPlain && n.layout != layoutInline:
		return fmt.Errorf("format %#x", format)
	case direntType(n.Mode) == 0:
		return fmt.Errorf("mode %#o", n.Mode)
	case n.Size < 0 || n.Size > i.size:
		return fmt.Errorf("size %d", n.Size)
	case kind != TypeRegular && kind != TypeDir && kind != TypeSymlink && n.Size != 0:
		return fmt.Errorf("size %d of a device, pipe or socket", n.Size)
	case kind == TypeSymlink && (n.Size == 0 || n.Size > maxLinkLength), kind == TypeDir && (n.Size == 0 || n.Size > i.maxDirectory):
		return fmt.Errorf("size %d", n.Size)
	case n.layout == layoutInline && n.Size%BlockSize == 0:
		return fmt.Errorf("size %d with an end behind the inode", n.Size)
	case n.Nanoseconds >= 1e9:
		return fmt.Errorf("time with %d nanoseconds", n.Nanoseconds)
	case n.xattrs > maxXattrs, at+tail > i.size:
		return fmt.Errorf("attributes of %d bytes, %d of content behind them", n.xattrs, tail)
	case whole > 0 && n.start+whole > i.size:
		return fmt.Errorf("content of %d bytes at %d", whole, n.start)
	}
	return nil
}

// split returns the number of content bytes that are in blocks, and the number of those
// behind the inode.
func (n Inode) split() (whole, tail int64) {
	if n.layout == layoutPlain {
		return n.Size, 0
	}
	whole = n.Size &^ (BlockSize - 1)
	return whole, n.Size - whole
}

// ReadAt reads content of a file. It returns fewer bytes than requested only at the
// end of the file.
func (i *Image) ReadAt(n Inode, into []byte, at int64) (int, error) {
	if at < 0 || at >= n.Size {
		return 0, nil
	}
	into = into[:min(int64(len(into)), n.Size-at)]
	whole, _ := n.split()
	done := 0
	if at < whole {
		part := into[:min(int64(len(into)), whole-at)]
		if _, err := i.from.ReadAt(part, n.start+at); err != nil {
			return 0, fmt.Errorf("read content of inode %d: %w", n.Number, err)
		}
		done = len(part)
	}
	if rest := into[done:]; len(rest) > 0 {
		tail := int64(n.Number)*slotSize + inodeSize + int64(n.xattrs)
		if _, err := i.from.ReadAt(rest, tail+at+int64(done)-whole); err != nil {
			return 0, fmt.Errorf("read content of inode %d: %w", n.Number, err)
		}
	}
	return len(into), nil
}

// Link returns the target of a symbolic link.
func (i *Image) Link(n Inode) (string, error) {
	if n.Mode&TypeMask != TypeSymlink {
		return "", fmt.Errorf("read link of inode %d: it is not a link", n.Number)
	}
	target := make([]byte, n.Size)
	_, err := i.ReadAt(n, target, 0)
	return string(target), err
}

// Entry is a directory entry other than "." and "..".
type Entry struct {
	Name   string
	Number uint64
	// Type is the inode's type, encoded as in its mode.
	Type uint16
}

// Directory returns the entries of a directory, sorted by name, and the number of
// its parent.
func (i *Image) Directory(n Inode) (entries []Entry, parent uint64, err error) {
	if !n.IsDir() {
		return nil, 0, fmt.Errorf("read directory %d: it is not a directory: %w", n.Number, ErrCorrupt)
	}
	content := make([]byte, n.Size)
	if _, err := i.ReadAt(n, content, 0); err != nil {
		return nil, 0, err
	}
	last := ""
	for len(content) > 0 {
		block := content[:min(BlockSize, len(content))]
		content = content[len(block):]
		count := 0
		if len(block) >= direntSize {
			count = int(order.Uint16(block[8:])) / direntSize
		}
		if count == 0 || count*direntSize > len(block) {
			return nil, 0, fmt.Errorf("read directory %d: %d entries in a block: %w", n.Number, count, ErrCorrupt)
		}
		for k := range count {
			e, err := entryAt(block, k, count)
			if err != nil || e.Name <= last || e.Number < Root || e.Number >= i.Numbers() {
				return nil, 0, fmt.Errorf("read directory %d: entry %q: %w", n.Number, e.Name, ErrCorrupt)
			}
			last = e.Name
			switch e.Name {
			case ".":
			case "..":
				parent = e.Number
			default:
				entries = append(entries, e)
			}
		}
		if len(entries) > i.maxEntries {
			return nil, 0, fmt.Errorf("read directory %d of layer %s: more than %d entries: %w: %w", n.Number, i.name, i.maxEntries, ErrTooLarge, ErrCorrupt)
		}
	}
	if parent == 0 {
		return nil, 0, fmt.Errorf("read directory %d: it has no parent: %w", n.Number, ErrCorrupt)
	}
	return entries, parent, nil
}

// entryAt decodes entry k of the count entries in a block.
func entryAt(block []byte, k, count int) (Entry, error) {
	raw := block[k*direntSize:]
	start, end := int(order.Uint16(raw[8:])), len(block)
	if k+1 < count {
		end = int(order.Uint16(raw[direntSize+8:]))
	}
	if start < count*direntSize || end < start || end > len(block) {
		return Entry{}, ErrCorrupt
	}
	name := block[start:end]
	if k+1 == count {
		// Padding follows the last name unless the block is full.
		name, _, _ = bytes.Cut(name, []byte{0})
	}
	e := Entry{Name: string(name), Number: order.Uint64(raw[0:]), Type: modeType(raw[10])}
	if e.Type == 0 || len(name) == 0 || len(name) > maxNameLength || strings.ContainsAny(e.Name, "/\x00") {
		return e, ErrCorrupt
	}
	return e, nil
}

// Xattrs returns the extended attributes of an inode.
func (i *Image) Xattrs(n Inode) ([]Xattr, error) {
	if n.xattrs == 0 {
		return nil, nil
	}
	b := make([]byte, n.xattrs)
	if _, err := i.from.ReadAt(b, int64(n.Number)*slotSize+inodeSize); err != nil {
		return nil, fmt.Errorf("read attributes of inode %d: %w", n.Number, err)
	}
	corrupt := fmt.Errorf("read attributes of inode %d: %w", n.Number, ErrCorrupt)
	if b[4] != 0 {
		return nil, corrupt // shared attributes, which the writer never creates
	}
	var all []Xattr
	for b = b[xattrHeaderSize:]; len(b) > 0; {
		if len(b) < xattrEntrySize {
			return nil, corrupt
		}
		name, value := int(b[0]), int(order.Uint16(b[2:]))
		prefix := ""
		for _, p := range prefixes {
			if p.index == b[1] {
				prefix = p.name
			}
		}
		size := xattrEntrySize + name + value
		if prefix == "" || name == 0 || size > len(b) {
			return nil, corrupt
		}
		all = append(all, Xattr{prefix + string(b[xattrEntrySize:xattrEntrySize+name]), b[xattrEntrySize+name : size]})
		b = b[min(len(b), (size+3)&^3):]
	}
	return all, nil
}
