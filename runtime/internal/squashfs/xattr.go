package squashfs

import "fmt"

// Xattr is an extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

const (
	// elsewhere is the flag of a value that is stored with another inode's attributes.
	elsewhere = 1 << 8
	maxXattrs = 64 << 10 // bytes of a value, and of an inode's attributes together
	// maxXattrCount bounds the attributes of one inode.
	maxXattrCount = 1024
)

// xattrRef is the place of an inode's attributes.
type xattrRef struct {
	place uint64
	count uint32
}

func (i *Image) readXattrRefs(table uint64) error {
	if table == noTable {
		return nil
	}
	var header [16]byte
	if table > uint64(i.size) {
		return fmt.Errorf("a table at %d: %w", table, ErrCorrupt)
	}
	if err := i.readAt(header[:], int64(table)); err != nil {
		return err
	}
	i.xattrTable = int64(order.Uint64(header[:]))
	var err error
	i.xattrRefs, err = i.newTable(table+16, order.Uint32(header[8:]), 16)
	return err
}

// xattrs reads the attributes of an inode.
func (i *Image) xattrs(index uint32) (all []Xattr, err error) {
	if index == noXattrs {
		return nil, nil
	}
	b, err := i.at(i.xattrRefs, index)
	if err != nil {
		return nil, fmt.Errorf("attributes: %w", err)
	}
	ref := xattrRef{order.Uint64(b), order.Uint32(b[8:])}
	if ref.count > maxXattrCount {
		return nil, fmt.Errorf("%d attributes of one inode: %w", ref.count, ErrCorrupt)
	}
	c, err := i.xattrCursor(ref.place)
	size := 0
	for range ref.count {
		if err != nil {
			return nil, err
		}
		var one Xattr
		if one, err = i.xattr(c); err == nil && one.Name != "" {
			all = append(all, one)
		}
		if size += len(one.Name) + len(one.Value); size > maxXattrs {
			return nil, fmt.Errorf("attributes of more than %d bytes of one inode: %w", maxXattrs, ErrCorrupt)
		}
	}
	return all, err
}

func (i *Image) xattrCursor(place uint64) (*cursor, error) {
	return i.cursor(i.xattrTable+int64(place>>16&0xffffffff), int(place&0xffff))
}

// xattr reads one attribute. The name is empty if the kind is unknown.
func (i *Image) xattr(c *cursor) (x Xattr, err error) {
	b, err := c.take(4)
	if err != nil {
		return x, err
	}
	kind, size := order.Uint16(b), order.Uint16(b[2:])
	name, err := c.take(int(size))
	if err != nil {
		return x, err
	}
	value, err := xattrValue(c)
	if err == nil && kind&elsewhere != 0 {
		if len(value) != 8 {
			return x, fmt.Errorf("a value that is elsewhere, by %d bytes: %w", len(value), ErrCorrupt)
		}
		if c, err = i.xattrCursor(order.Uint64(value)); err == nil {
			value, err = xattrValue(c)
		}
	}
	if prefix, known := map[uint16]string{0: "user.", 1: "trusted.", 2: "security."}[kind&^elsewhere]; known {
		x = Xattr{prefix + string(name), value}
	}
	return x, err
}

func xattrValue(c *cursor) ([]byte, error) {
	b, err := c.take(4)
	if err != nil {
		return nil, err
	}
	size := order.Uint32(b)
	if size > maxXattrs {
		return nil, fmt.Errorf("an attribute of %d bytes: %w", size, ErrCorrupt)
	}
	return c.take(int(size))
}
