package squashfs

import (
	"fmt"
	"io"
	"time"
)

// Kind is the type of an inode.
type Kind uint16

// The kinds, with the format's numbers.
const (
	Dir Kind = iota + 1
	File
	Symlink
	Block
	Char
	FIFO
	Socket
	extended = 7 // added to the kind of an inode with more fields
)

// Inode is a file, a directory, a link or a special file.
type Inode struct {
	Kind     Kind
	Mode     uint16 // permissions, including set-user bits
	UID, GID uint32
	Time     time.Time
	Number   uint32
	Links    uint32
	Size     int64
	Target   string // of a link
	Device   uint32 // of a device, in Linux's 32-bit encoding
	Xattrs   []Xattr

	// start is the offset of a file's first block, or of a directory's metadata block in
	// the table of directories. offset is the offset within the fragment or that block.
	start    int64
	fragment uint32 // index of the fragment block with the end of a file, or noFragment
	offset   uint32
	blocks   []uint32 // packed sizes of a file's blocks in bytes
}

// Major returns a device's major number.
func (n Inode) Major() int64 { return int64(n.Device >> 8 & 0xfff) }

// Minor returns a device's minor number.
func (n Inode) Minor() int64 { return int64(n.Device&0xff | n.Device>>12&0xfff00) }

// maxTarget is Linux's limit for the target of a link, in bytes.
const maxTarget = 4095

// inode reads the inode at a reference.
func (i *Image) inode(reference uint64) (n Inode, err error) {
	c, err := i.cursor(i.inodeTable+int64(reference>>16&0xffffffff), int(reference&0xffff))
	if err != nil {
		return n, err
	}
	b, err := c.take(16)
	if err != nil {
		return n, err
	}
	kind := Kind(order.Uint16(b))
	n.Kind = kind
	if kind > extended {
		n.Kind -= extended
	}
	if n.Kind < Dir || n.Kind > Socket {
		return n, fmt.Errorf("an inode of kind %d: %w", kind, ErrCorrupt)
	}
	n.Mode = order.Uint16(b[2:]) & 0o7777
	if n.UID, err = i.id(order.Uint16(b[4:])); err != nil {
		return n, err
	}
	if n.GID, err = i.id(order.Uint16(b[6:])); err != nil {
		return n, err
	}
	n.Time = time.Unix(int64(order.Uint32(b[8:])), 0)
	n.Number = order.Uint32(b[12:])
	xattrs := uint32(noXattrs)
	switch kind {
	case Dir:
		b, err = c.take(16)
		n.start, n.Links, n.Size, n.offset = int64(order.Uint32(b)), order.Uint32(b[4:]), int64(order.Uint16(b[8:])), uint32(order.Uint16(b[10:]))
	case Dir + extended:
		b, err = c.take(24)
		n.Links, n.Size, n.start = order.Uint32(b), int64(order.Uint32(b[4:])), int64(order.Uint32(b[8:]))
		n.offset, xattrs = uint32(order.Uint16(b[18:])), order.Uint32(b[20:])
	case File:
		b, err = c.take(16)
		n.start, n.fragment, n.offset, n.Size, n.Links = int64(order.Uint32(b)), order.Uint32(b[4:]), order.Uint32(b[8:]), int64(order.Uint32(b[12:])), 1
	case File + extended:
		b, err = c.take(40)
		n.start, n.Size, n.Links = int64(order.Uint64(b)), int64(order.Uint64(b[8:])), order.Uint32(b[24:])
		n.fragment, n.offset, xattrs = order.Uint32(b[28:]), order.Uint32(b[32:]), order.Uint32(b[36:])
	case Symlink, Symlink + extended:
		b, err = c.take(8)
		n.Links, n.Size = order.Uint32(b), int64(order.Uint32(b[4:]))
	case Block, Char, Block + extended, Char + extended:
		b, err = c.take(8)
		n.Links, n.Device = order.Uint32(b), order.Uint32(b[4:])
	default:
		b, err = c.take(4)
		n.Links = order.Uint32(b)
	}
	if err != nil {
		return n, err
	}
	if err := i.readRest(c, &n); err != nil {
		return n, err
	}
	if kind > extended+File {
		if b, err = c.take(4); err != nil {
			return n, err
		}
		xattrs = order.Uint32(b)
	}
	n.Xattrs, err = i.xattrs(xattrs)
	return n, err
}

// readRest reads the part of an inode whose length the inode defines: a link's
// target, or the block sizes of a file.
func (i *Image) readRest(c *cursor, n *Inode) error {
	switch n.Kind {
	case Symlink:
		if n.Size > maxTarget {
			return fmt.Errorf("a link to %d bytes: %w", n.Size, ErrCorrupt)
		}
		target, err := c.take(int(n.Size))
		n.Target = string(target)
		return err
	case File:
		count := n.Size / int64(i.blockSize)
		if n.fragment == noFragment && n.Size%int64(i.blockSize) != 0 {
			count++
		}
		if n.Size < 0 {
			return fmt.Errorf("a file of %d bytes: %w", n.Size, ErrCorrupt)
		}
		if i.blocks += min(count, maxBlocks); count > maxFileBlocks || i.blocks > maxBlocks {
			return fmt.Errorf("a file of %d bytes: at most %d blocks of a file and %d of an image are read", n.Size, maxFileBlocks, maxBlocks)
		}
		var b [4]byte
		for range count {
			if _, err := io.ReadFull(c, b[:]); err != nil {
				return err
			}
			n.blocks = append(n.blocks, order.Uint32(b[:]))
		}
	}
	return nil
}

// content reads a file from beginning to end.
type content struct {
	image *Image
	inode Inode
	at    int64  // offset of the next block in the image
	next  int    // index of the next block
	left  int64  // bytes that are not read yet
	rest  []byte // of the current block
}

// Content returns a reader of a file. Use only one reader at a time.
func (i *Image) Content(n Inode) io.Reader {
	return &content{image: i, inode: n, at: n.start, left: n.Size}
}

func (c *content) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	if len(c.rest) == 0 {
		if err := c.load(); err != nil {
			return 0, err
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	c.left -= int64(n)
	return n, nil
}

// load reads the next block of the file into rest.
func (c *content) load() (err error) {
	want := min(c.left, int64(c.image.blockSize))
	if c.next == len(c.inode.blocks) {
		tail, err := c.image.tail(c.inode.fragment)
		if err != nil {
			return err
		}
		if int64(c.inode.offset)+want > int64(len(tail)) {
			return fmt.Errorf("bytes %d to %d of a fragment of %d: %w", c.inode.offset, int64(c.inode.offset)+want, len(tail), ErrCorrupt)
		}
		c.rest = tail[c.inode.offset:][:want]
		return nil
	}
	size := c.inode.blocks[c.next]
	c.next++
	if c.rest, err = c.image.block(c.at, size); err != nil {
		return err
	}
	c.at += int64(size &^ plainData)
	if size == 0 {
		c.rest = c.image.zeros()
	}
	if int64(len(c.rest)) < want {
		return fmt.Errorf("a block of %d bytes instead of %d: %w", len(c.rest), want, ErrCorrupt)
	}
	c.rest = c.rest[:want]
	return nil
}

// zeros returns a block of zeros, which is valid until the next call of block or zeros.
func (i *Image) zeros() []byte {
	clear(i.unpacked)
	if len(i.unpacked) < int(i.blockSize) {
		i.unpacked = make([]byte, i.blockSize)
	}
	return i.unpacked
}

// block reads and unpacks a data block at an offset. size is its packed size, with the flag
// plainData. The result is valid until the next call.
func (i *Image) block(at int64, size uint32) ([]byte, error) {
	count := size &^ plainData
	if count > i.blockSize {
		return nil, fmt.Errorf("a block of %d bytes: %w", count, ErrCorrupt)
	}
	if cap(i.packed) < int(count) {
		i.packed = make([]byte, i.blockSize)
	}
	packed := i.packed[:count]
	if err := i.readAt(packed, at); err != nil || size&plainData != 0 || count == 0 {
		return packed, err
	}
	unpacked, err := i.codec(i.unpacked, packed, int(i.blockSize))
	if err != nil {
		return nil, fmt.Errorf("unpack data at %d: %w", at, err)
	}
	i.unpacked = unpacked[:cap(unpacked)]
	return unpacked, nil
}

// tail returns the content of a fragment block, which holds the ends of many files.
func (i *Image) tail(index uint32) ([]byte, error) {
	f, err := i.fragment(index)
	if err != nil {
		return nil, err
	}
	if i.fragmentAt == f.start {
		return i.fragmentData, nil
	}
	data, err := i.block(f.start, f.size)
	if err != nil {
		return nil, err
	}
	i.fragmentData, i.fragmentAt = append(i.fragmentData[:0], data...), f.start
	return i.fragmentData, nil
}
