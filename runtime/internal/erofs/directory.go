package erofs

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
)

// directoryLimits bounds the directories of an image.
type directoryLimits struct {
	maxEntries   int
	maxDirectory int64 // in bytes
}

var defaultLimits = directoryLimits{maxEntries, maxDirectory}

func (l *directoryLimits) multiply(times int) {
	l.maxEntries *= max(1, times)
	l.maxDirectory *= int64(max(1, times))
}

// placeDirectories assigns places to the inodes of dir and of all directories below
// it. Entries contain the inode numbers of subdirectories, and ".." the number of
// the parent.
func (w *Writer) placeDirectories(dir *Node, all *[]*Node) error {
	dir.size = 0
	packDirectory(dir.names(), func(_ []string, size int) { dir.size += int64(size) })
	if len(dir.children) > w.maxEntries || dir.size > w.maxDirectory {
		return fmt.Errorf("write a directory of %d entries and %d bytes: %w: at most %d, and %d bytes", len(dir.children), dir.size, ErrTooLarge, w.maxEntries, w.maxDirectory)
	}
	xattrs, err := encodeXattrs(dir.meta.Xattrs)
	if err != nil {
		return err
	}
	tail := int(dir.size % BlockSize)
	if dir == w.root || inodeSize+len(xattrs)+tail > BlockSize {
		tail = 0
	}
	if dir == w.root {
		dir.at = place{offset: rootOffset}
	} else {
		if dir.at, err = w.allocate(inodeSize + len(xattrs) + tail); err != nil {
			return err
		}
		dir.number = uint64(dir.at.offset) / slotSize
	}
	*all = append(*all, dir)
	for _, name := range slices.Sorted(maps.Keys(dir.children)) {
		if child := dir.children[name]; child.IsDir() {
			if err := w.placeDirectories(child, all); err != nil {
				return err
			}
		}
	}
	return nil
}

// names returns the names of the entries in byte order, which the kernel's search
// needs.
func (n *Node) names() []string {
	all := append(slices.Collect(maps.Keys(n.children)), ".", "..")
	slices.Sort(all)
	return all
}

// packDirectory splits names into runs that each fit into a block. Every run except
// the last occupies a whole block.
func packDirectory(names []string, run func(names []string, size int)) {
	size := 0
	start := 0
	for i, name := range names {
		need := direntSize + len(name)
		if size+need > BlockSize {
			run(names[start:i], BlockSize)
			start, size = i, 0
		}
		size += need
	}
	run(names[start:], size)
}

// writeDirectory writes the entries and the inode of a directory. It writes the
// inode of the root into first, the first block.
func (w *Writer) writeDirectory(dir *Node, first []byte) error {
	xattrs, err := encodeXattrs(dir.meta.Xattrs)
	if err != nil {
		return err
	}
	room := dir.at.room
	if dir == w.root {
		room = first[rootOffset:]
	}
	dir.start = uint32(w.end / BlockSize)
	dir.links = 2
	for _, child := range dir.children {
		if child.IsDir() {
			dir.links++
		}
	}
	layout := uint16(layoutPlain)
	inline := dir != w.root && len(room) > inodeSize+len(xattrs)
	var tail []byte
	packDirectory(dir.names(), func(names []string, size int) {
		if err != nil {
			return
		}
		block := dir.encodeEntries(names, size)
		if size < BlockSize && inline {
			layout, tail = layoutInline, block
			return
		}
		err = w.copyBlocks(bytes.NewReader(append(block, zeros[:BlockSize-size]...)), BlockSize)
	})
	if err != nil {
		return err
	}
	w.encodeInode(room, dir, layout, xattrs, tail)
	return nil
}

func (n *Node) encodeEntries(names []string, size int) []byte {
	block := make([]byte, size)
	at := len(names) * direntSize
	for i, name := range names {
		target := n.children[name]
		switch name {
		case ".":
			target = n
		case "..":
			target = n.parent
		}
		entry := block[i*direntSize:]
		order.PutUint64(entry[0:], target.number)
		order.PutUint16(entry[8:], uint16(at))
		entry[10] = direntType(target.meta.Mode)
		at += copy(block[at:], name)
	}
	return block
}
