package corpus

import (
	"encoding/binary"
	"hash/crc32"
	"slices"
	"strings"
)

// Inode is an inode of an image of package erofs. The package's writer may be unable to make
// such an inode.
type Inode struct {
	Mode uint16
	Size int64
	// Block is the index of the first of its blocks among all blocks of content.
	Block int
}

const (
	erofsBlock = 4096
	erofsInode = 64
	// erofsRoot is the number of the root's inode. erofsFirst is the number of the next one.
	erofsRoot, erofsFirst = 36, 128
)

// InodeNumber returns the number of the inode with an index. The root has the index 0.
func InodeNumber(index int) uint64 {
	if index == 0 {
		return erofsRoot
	}
	return uint64(erofsFirst + 2*(index-1))
}

// Directory returns the blocks of a directory, and its size in bytes. children maps the
// names of its entries to the indexes of their inodes, and kind is the type of all of them.
func Directory(kind uint8, children map[string]int) (blocks []byte, size int64) {
	names := []string{".", ".."}
	for name := range children {
		names = append(names, name)
	}
	slices.Sort(names)
	for len(names) > 0 {
		count, room := 0, erofsBlock
		for count < len(names) && room >= 12+len(names[count]) {
			room -= 12 + len(names[count])
			count++
		}
		block := make([]byte, 12*count)
		for i, name := range names[:count] {
			number, is := InodeNumber(children[name]), kind
			if name == "." || name == ".." {
				number, is = erofsRoot, 2
			}
			binary.LittleEndian.PutUint64(block[12*i:], number)
			binary.LittleEndian.PutUint16(block[12*i+8:], uint16(len(block)))
			block[12*i+10] = is
			block = append(block, name...)
		}
		names = names[count:]
		size = int64(len(blocks) + len(block))
		if len(names) > 0 {
			size = int64(len(blocks) + erofsBlock)
		}
		blocks = append(blocks, block...)
		blocks = append(blocks, make([]byte, erofsBlock-len(block))...)
	}
	return blocks, size
}

// EROFS returns the file of a layer with inodes, the root first, and the blocks of their
// content. Its checksums are right.
func EROFS(inodes []Inode, content []byte) []byte {
	tables := (len(inodes)-1)*erofsInode + erofsBlock - 1
	start := 1 + tables/erofsBlock
	all := make([]byte, start*erofsBlock, start*erofsBlock+len(content))
	all = append(all, content...)
	blocks := len(all) / erofsBlock
	super := all[1024:]
	binary.LittleEndian.PutUint32(super, 0xe0f5e1e2)
	super[12], super[14] = 12, erofsRoot
	binary.LittleEndian.PutUint32(super[36:], uint32(blocks))
	copy(super[64:], "berth 1")
	for i, n := range inodes {
		b := all[InodeNumber(i)*32:]
		b[0] = 1 // extended, and all content in blocks
		binary.LittleEndian.PutUint16(b[4:], n.Mode)
		binary.LittleEndian.PutUint64(b[8:], uint64(n.Size))
		binary.LittleEndian.PutUint32(b[16:], uint32(start+n.Block))
	}
	var tail []byte
	table := crc32.MakeTable(crc32.Castagnoli)
	for i := range blocks {
		tail = binary.LittleEndian.AppendUint32(tail, crc32.Checksum(all[i*erofsBlock:(i+1)*erofsBlock], table))
	}
	tail = binary.LittleEndian.AppendUint32(append(tail, "berth layer sums"...), uint32(blocks))
	tail = binary.LittleEndian.AppendUint32(tail, crc32.Checksum(tail, table))
	return append(all, tail...)
}

// NestedTwice returns the image of a layer of depth directories. Each has two names in the
// directory above it. So there are few inodes, but about 2^depth paths.
func NestedTwice(depth int) []byte {
	var inodes []Inode
	var content []byte
	for i := range depth {
		children := map[string]int{"a": i + 1, "b": i + 1}
		if i == depth-1 {
			children = nil
		}
		blocks, size := Directory(2, children)
		inodes = append(inodes, Inode{Mode: 0o040755, Size: size, Block: len(content) / erofsBlock})
		content = append(content, blocks...)
	}
	return EROFS(inodes, content)
}

// SharedEntries returns the image of a layer with many directories. All have the same
// entries, which are stored once: links names of one file.
func SharedEntries(directories, links int) []byte {
	dirs, files := map[string]int{}, map[string]int{}
	inodes := make([]Inode, 1, directories+2)
	for i := range directories {
		dirs["d"+number(i)] = i + 1
	}
	for i := range links {
		files["f"+number(i)] = directories + 1
	}
	content, size := Directory(2, dirs)
	inodes[0] = Inode{Mode: 0o040755, Size: size}
	shared, size := Directory(1, files)
	for range directories {
		inodes = append(inodes, Inode{Mode: 0o040755, Size: size, Block: len(content) / erofsBlock})
	}
	inodes = append(inodes, Inode{Mode: 0o100644})
	return EROFS(inodes, append(content, shared...))
}

// number returns a number as a short name.
func number(n int) string {
	var b strings.Builder
	for range 3 {
		b.WriteByte("0123456789abcdefghijklmnopqrstuvwxyz"[n%36])
		n /= 36
	}
	return b.String()
}
