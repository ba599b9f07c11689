package squashfs

import "fmt"

// table is a list of count entries of entry bytes each. The entries are in metadata blocks.
// The offsets of the blocks are in a list at offset list. An image may claim any number of entries, and repeat one
// block in the list. Therefore entries are read only when they are needed.
type table struct {
	list  uint64
	count uint32
	entry int
}

// perBlock returns the number of entries in a metadata block.
func (t table) perBlock() uint32 { return uint32(metaSize / t.entry) }

// newTable returns the table with a list of places. The list must lie within the
// image.
func (i *Image) newTable(list uint64, count uint32, entry int) (table, error) {
	t := table{list, count, entry}
	places := 8 * ((int64(count) + int64(t.perBlock()) - 1) / int64(t.perBlock()))
	if list > uint64(i.size) || places > i.size-int64(list) {
		return table{}, fmt.Errorf("a table of %d entries at %d: %w", count, list, ErrCorrupt)
	}
	return t, nil
}

// at reads the entry with an index.
func (i *Image) at(t table, index uint32) ([]byte, error) {
	if index >= t.count {
		return nil, fmt.Errorf("entry %d of %d: %w", index, t.count, ErrCorrupt)
	}
	var place [8]byte
	if err := i.readAt(place[:], int64(t.list)+8*int64(index/t.perBlock())); err != nil {
		return nil, err
	}
	c, err := i.cursor(int64(order.Uint64(place[:])), int(index%t.perBlock())*t.entry)
	if err != nil {
		return nil, err
	}
	return c.take(t.entry)
}
