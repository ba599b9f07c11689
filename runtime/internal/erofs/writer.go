package erofs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
)

// Meta holds an inode's metadata.
type Meta struct {
	// Mode holds the type and the permissions.
	Mode     uint16
	UID, GID uint32
	// Device is a device's number, see DeviceNumber.
	Device uint32
	// Seconds and Nanoseconds are the time of the last modification.
	Seconds     int64
	Nanoseconds uint32
	Xattrs      []Xattr
}

// Writer writes an image. It writes files when they are added. Only directories are
// kept in memory until Close.
type Writer struct {
	file *os.File
	// end is the end of the used blocks, in bytes.
	end int64
	// pending holds data that will be written at the offset pendingAt.
	pending   []byte
	pendingAt int64
	// block is the current inode block, at offset blockAt; used counts its used
	// bytes.
	block   []byte
	blockAt int64
	used    int
	inodes  uint64
	// xattrs is set if a file has extended attributes that a container may see.
	xattrs bool
	sums   sums
	root   *Node
	directoryLimits
}

// Node is a file or directory of a Writer's tree.
type Node struct {
	meta   Meta
	number uint64
	// links counts the directory entries of an inode.
	links uint32
	// children is nil for everything except directories.
	children map[string]*Node
	parent   *Node
	// at is the place of the inode. Only a directory's place has room, which is filled
	// in by Close.
	at    place
	size  int64
	start uint32
}

// place is the space of an inode: its offset in the image's file, and the part of an
// inode block that holds it.
type place struct {
	offset int64
	room   []byte
}

// flushSize is the size of the buffer for pending data, in bytes.
const flushSize = 256 << 10

// NewWriter returns a writer of an image to file, which must be empty. The caller
// closes the file.
func NewWriter(file *os.File) *Writer {
	w := &Writer{file: file, directoryLimits: defaultLimits, pending: make([]byte, 0, flushSize), end: BlockSize, pendingAt: BlockSize}
	w.root = &Node{meta: Meta{Mode: TypeDir | 0o755}, number: rootOffset / slotSize, children: map[string]*Node{}}
	w.root.parent = w.root
	return w
}

// MultiplyLimits multiplies the limits on directories. Call it before Close.
func (w *Writer) MultiplyLimits(times int) { w.multiply(times) }

// Root returns the root directory.
func (w *Writer) Root() *Node { return w.root }

// Meta returns the node's metadata.
func (n *Node) Meta() Meta { return n.meta }

// IsDir reports whether the node is a directory.
func (n *Node) IsDir() bool { return n.children != nil }

// Parent returns the parent of a directory. The root is its own parent.
func (n *Node) Parent() *Node { return n.parent }

// Child returns the node with a name in a directory, or nil.
func (n *Node) Child(name string) *Node { return n.children[name] }

// Describe replaces the metadata of a directory. It fails for other nodes, which
// are already written.
func (w *Writer) Describe(dir *Node, meta Meta) error {
	if !dir.IsDir() || meta.Mode&TypeMask != TypeDir {
		return errors.New("describe: not a directory")
	}
	if _, err := encodeXattrs(meta.Xattrs); err != nil {
		return err
	}
	dir.meta = meta
	return nil
}

// Link adds a node to a directory, and replaces an existing entry with that name.
func (w *Writer) Link(dir *Node, name string, n *Node) error {
	if name == "" || name == "." || name == ".." || len(name) > maxNameLength || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("add %q: not a file name", name)
	}
	if !dir.IsDir() {
		return fmt.Errorf("add %q: its parent is not a directory", name)
	}
	if n.IsDir() && n.parent != nil {
		return fmt.Errorf("add %q: a directory has one name only", name)
	}
	if n.links == math.MaxUint32 {
		return fmt.Errorf("add %q: too many links", name)
	}
	if old := dir.children[name]; old != nil {
		w.unlink(old)
	}
	dir.children[name] = n
	n.links++
	if n.IsDir() {
		n.parent = dir
	}
	return nil
}

// unlink removes one name of a node. A node without names stays in the image,
// unreachable.
func (w *Writer) unlink(n *Node) {
	n.links--
	for _, child := range n.children {
		w.unlink(child)
	}
}

// Dir returns a new directory, which has no name yet.
func (w *Writer) Dir(meta Meta) (*Node, error) {
	if _, err := encodeXattrs(meta.Xattrs); err != nil {
		return nil, err
	}
	if meta.Mode&TypeMask != TypeDir {
		return nil, errors.New("add directory: its mode has another type")
	}
	return &Node{meta: meta, children: map[string]*Node{}}, nil
}

// File returns a new file of any type but a directory, which has no name yet.
// content has size bytes: a regular file's data or a link's target.
func (w *Writer) File(meta Meta, content io.Reader, size int64) (*Node, error) {
	switch kind := meta.Mode & TypeMask; {
	case direntType(meta.Mode) == 0 || kind == TypeDir:
		return nil, fmt.Errorf("add file of type %#o: no such type", kind)
	case size < 0 || size > math.MaxUint32*BlockSize/2:
		return nil, fmt.Errorf("add file of %d bytes: impossible size", size)
	case kind == TypeSymlink && (size == 0 || size > maxLinkLength):
		return nil, fmt.Errorf("add link of %d bytes: give 1 to %d", size, maxLinkLength)
	case kind != TypeRegular && kind != TypeSymlink && size != 0:
		return nil, errors.New("add file: only regular files and symbolic links have content")
	}
	xattrs, err := encodeXattrs(meta.Xattrs)
	if err != nil {
		return nil, err
	}
	if err := w.checkSize(size); err != nil {
		return nil, err
	}
	start := w.end / BlockSize
	whole := size &^ (BlockSize - 1)
	if err := w.copyBlocks(content, whole); err != nil {
		return nil, err
	}
	var tail [BlockSize]byte
	last := tail[:size-whole]
	if _, err := io.ReadFull(content, last); err != nil && len(last) > 0 {
		return nil, fmt.Errorf("read content: %w", unexpected(err))
	}
	n := &Node{meta: meta, size: size, start: uint32(start)}
	layout := uint16(layoutPlain)
	switch {
	case len(last) > 0 && inodeSize+len(xattrs)+len(last) <= BlockSize:
		layout = layoutInline
	case len(last) > 0:
		// The last block follows the others directly.
		if err := w.copyBlocks(bytes.NewReader(tail[:]), BlockSize); err != nil {
			return nil, err
		}
		last = nil
	}
	at, err := w.allocate(inodeSize + len(xattrs) + len(last))
	if err != nil {
		return nil, err
	}
	n.number, n.at = uint64(at.offset)/slotSize, place{offset: at.offset}
	w.encodeInode(at.room, n, layout, xattrs, last)
	return n, nil
}

// Space returns a new regular file of size bytes, and the offset of its content in
// the image's file. Another writer fills in the content later. Until then the
// content has no checksums, see OpenChanging.
func (w *Writer) Space(meta Meta, size int64) (*Node, int64, error) {
	if meta.Mode&TypeMask != TypeRegular {
		return nil, 0, errors.New("make room for content: it is not a regular file")
	}
	if size <= 0 || size > math.MaxUint32*BlockSize/2 {
		return nil, 0, fmt.Errorf("make room for a file of %d bytes: impossible size", size)
	}
	xattrs, err := encodeXattrs(meta.Xattrs)
	if err != nil {
		return nil, 0, err
	}
	if err := w.checkSize(size); err != nil {
		return nil, 0, err
	}
	if err := w.flush(); err != nil {
		return nil, 0, err
	}
	start := w.end
	w.end += (size + BlockSize - 1) &^ (BlockSize - 1)
	w.pendingAt = w.end
	n := &Node{meta: meta, size: size, start: uint32(start / BlockSize)}
	at, err := w.allocate(inodeSize + len(xattrs))
	if err != nil {
		return nil, 0, err
	}
	n.number, n.at = uint64(at.offset)/slotSize, place{offset: at.offset}
	w.encodeInode(at.room, n, layoutPlain, xattrs, nil)
	return n, start, nil
}

// checkSize refuses content if blocks after it would have numbers beyond the format's
// limit.
func (w *Writer) checkSize(size int64) error {
	if blocks := (w.end + size) / BlockSize; blocks >= math.MaxUint32 {
		return fmt.Errorf("add file of %d bytes: the image would have %d blocks, and can have %d", size, blocks, uint32(math.MaxUint32))
	}
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Close writes the directories and the superblock. Without it the image is invalid.
func (w *Writer) Close() error {
	var dirs []*Node
	if err := w.placeDirectories(w.root, &dirs); err != nil {
		return err
	}
	first := make([]byte, BlockSize)
	for _, dir := range dirs {
		if err := w.writeDirectory(dir, first); err != nil {
			return err
		}
	}
	if err := w.flushBlock(); err != nil {
		return err
	}
	if err := w.flush(); err != nil {
		return err
	}
	// The inode blocks of all directories but the root are already in the file, so write
	// the inodes there.
	for _, dir := range dirs[1:] {
		w.sums.patch(dir.at.offset)
		if _, err := w.file.WriteAt(dir.at.room, dir.at.offset); err != nil {
			return fmt.Errorf("write directory: %w", err)
		}
	}
	if err := w.patchLinks(w.root, map[*Node]bool{}); err != nil {
		return err
	}
	volume := volumePlain
	if w.xattrs {
		volume = volumeXattrs
	}
	encodeSuper(first[superOffset:], w.inodes+1, uint32(w.end/BlockSize), volume)
	w.sums.note(first, 0)
	if _, err := w.file.WriteAt(first, 0); err != nil {
		return fmt.Errorf("write superblock: %w", err)
	}
	return w.sums.write(w.file, w.end)
}

// copyBlocks appends whole blocks. Blocks of zeros become holes in the file.
func (w *Writer) copyBlocks(content io.Reader, size int64) error {
	for size > 0 {
		if len(w.pending) == cap(w.pending) {
			if err := w.flush(); err != nil {
				return err
			}
		}
		n := min(size, int64(cap(w.pending)-len(w.pending)))
		room := w.pending[len(w.pending) : len(w.pending)+int(n)]
		if _, err := io.ReadFull(content, room); err != nil {
			return fmt.Errorf("read content: %w", unexpected(err))
		}
		w.pending = w.pending[:len(w.pending)+int(n)]
		w.end += n
		size -= n
	}
	return nil
}

var zeros [BlockSize]byte

// flush writes the pending data, in runs of blocks that are not all zeros.
func (w *Writer) flush() error {
	data := w.pending
	w.sums.note(data, w.pendingAt)
	isHole := func(at int) bool { return bytes.Equal(data[at:at+BlockSize], zeros[:]) }
	for at := 0; at < len(data); {
		end := at + BlockSize
		if isHole(at) {
			at = end
			continue
		}
		for end < len(data) && !isHole(end) {
			end += BlockSize
		}
		if _, err := w.file.WriteAt(data[at:end], w.pendingAt+int64(at)); err != nil {
			return fmt.Errorf("write data: %w", err)
		}
		at = end
	}
	w.pendingAt, w.pending = w.end, w.pending[:0]
	return nil
}

// allocate reserves space for an inode and the data behind it, within one block.
func (w *Writer) allocate(size int) (place, error) {
	if w.block == nil || w.used+size > BlockSize {
		if err := w.flushBlock(); err != nil {
			return place{}, err
		}
		w.block, w.blockAt, w.used = make([]byte, BlockSize), w.end, 0
		// Reserve the block. Zeros are not written, so this costs nothing.
		if err := w.copyBlocks(bytes.NewReader(zeros[:]), BlockSize); err != nil {
			return place{}, err
		}
	}
	at := place{w.blockAt + int64(w.used), w.block[w.used : w.used+size]}
	w.used += (size + slotSize - 1) &^ (slotSize - 1)
	w.inodes++
	return at, nil
}

// flushBlock completes the current inode block: in the pending data if the block is
// still there, and otherwise in the file.
func (w *Writer) flushBlock() error {
	block := w.block
	w.block = nil
	if block == nil {
		return nil
	}
	if w.blockAt >= w.pendingAt {
		copy(w.pending[w.blockAt-w.pendingAt:], block)
		return nil
	}
	w.sums.note(block, w.blockAt)
	if _, err := w.file.WriteAt(block, w.blockAt); err != nil {
		return fmt.Errorf("write inodes: %w", err)
	}
	return nil
}

// patchLinks corrects the link counts of inodes that were written before they got
// another name.
func (w *Writer) patchLinks(dir *Node, done map[*Node]bool) error {
	for _, n := range dir.children {
		if n.IsDir() {
			if err := w.patchLinks(n, done); err != nil {
				return err
			}
		} else if n.links > 1 && !done[n] {
			done[n] = true
			var count [4]byte
			order.PutUint32(count[:], n.links)
			w.sums.patch(n.at.offset)
			if _, err := w.file.WriteAt(count[:], n.at.offset+linksOffset); err != nil {
				return fmt.Errorf("write number of links: %w", err)
			}
		}
	}
	return nil
}

// linksOffset is the offset of the link count in an inode.
const linksOffset = 44

func (w *Writer) encodeInode(b []byte, n *Node, layout uint16, xattrs, tail []byte) {
	w.xattrs = w.xattrs || slices.ContainsFunc(n.meta.Xattrs, func(x Xattr) bool { return !strings.HasPrefix(x.Name, "trusted.") })
	order.PutUint16(b[0:], 1|layout<<1)
	if len(xattrs) > 0 {
		order.PutUint16(b[2:], uint16((len(xattrs)-xattrHeaderSize)/4+1))
	}
	order.PutUint16(b[4:], n.meta.Mode)
	order.PutUint64(b[8:], uint64(n.size))
	data := n.start
	switch n.meta.Mode & TypeMask {
	case TypeChar, TypeBlock:
		data = n.meta.Device
	case TypeFIFO, TypeSocket:
		data = 0
	}
	order.PutUint32(b[16:], data)
	order.PutUint32(b[20:], uint32(w.inodes))
	order.PutUint32(b[24:], n.meta.UID)
	order.PutUint32(b[28:], n.meta.GID)
	order.PutUint64(b[32:], uint64(n.meta.Seconds))
	order.PutUint32(b[40:], n.meta.Nanoseconds)
	order.PutUint32(b[linksOffset:], max(1, n.links))
	copy(b[inodeSize:], xattrs)
	copy(b[inodeSize+len(xattrs):], tail)
}

func encodeXattrs(all []Xattr) ([]byte, error) {
	if len(all) == 0 {
		return nil, nil
	}
	out := make([]byte, xattrHeaderSize)
	for _, x := range all {
		i := slices.IndexFunc(prefixes, func(p struct {
			index uint8
			name  string
		}) bool {
			return strings.HasPrefix(x.Name, p.name)
		})
		if i < 0 || len(x.Value) > math.MaxUint16 {
			return nil, fmt.Errorf("add extended attribute %q (%d bytes): cannot be kept", x.Name, len(x.Value))
		}
		name := x.Name[len(prefixes[i].name):]
		if len(name) == 0 || len(name) > maxNameLength || strings.Contains(name, "\x00") {
			return nil, fmt.Errorf("add extended attribute %q: no name", x.Name)
		}
		out = append(out, uint8(len(name)), prefixes[i].index)
		out = order.AppendUint16(out, uint16(len(x.Value)))
		out = append(append(out, name...), x.Value...)
		for len(out)%4 != 0 {
			out = append(out, 0)
		}
	}
	if len(out) > maxXattrs {
		return nil, fmt.Errorf("add extended attributes: %d bytes are more than the %d that a file can have", len(out), maxXattrs)
	}
	return out, nil
}

func encodeSuper(b []byte, inodes uint64, blocks uint32, volume string) {
	order.PutUint32(b[0:], magic)
	b[12] = blockBits
	order.PutUint16(b[14:], rootOffset/slotSize)
	order.PutUint64(b[16:], inodes)
	order.PutUint32(b[36:], blocks)
	copy(b[64:80], volume)
}
