package squashfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"strings"
)

// Walk calls visit for every inode of the image, with its path. It visits the root,
// ".", first, and a directory before its entries, which are in the image's order.
func (i *Image) Walk(visit func(path string, n Inode) error) error {
	i.blocks = 0
	root, err := i.inode(i.root)
	if err != nil {
		return fmt.Errorf("read root: %w", err)
	}
	if root.Kind != Dir {
		return fmt.Errorf("read root: it is not a directory: %w", ErrCorrupt)
	}
	if err := visit(".", root); err != nil {
		return err
	}
	w := walker{i, visit, map[uint32]bool{root.Number: true}, 0}
	return w.directory("", root)
}

type walker struct {
	image *Image
	visit func(string, Inode) error
	// seen holds the directories visited so far. A directory with two names is an
	// error, because the walk might not end.
	seen  map[uint32]bool
	count int64
}

func (w *walker) directory(path string, dir Inode) error {
	for e, err := range w.image.entries(dir) {
		if err != nil {
			return fmt.Errorf("read directory %q: %w", path, err)
		}
		w.count++
		name := path + e.name
		// The limit for a path also bounds the nesting of directories.
		if err := errors.Join(w.image.limits.CheckFiles(w.count), w.image.limits.CheckPath(name)); err != nil {
			return err
		}
		n, err := w.image.inode(e.inode)
		if err != nil {
			return fmt.Errorf("read %q: %w", name, err)
		}
		if n.Kind == Dir && w.seen[n.Number] {
			return fmt.Errorf("read %q: a directory is in itself: %w", name, ErrCorrupt)
		}
		if err := w.visit(name, n); err != nil {
			return err
		}
		if n.Kind != Dir {
			continue
		}
		w.seen[n.Number] = true
		if err := w.directory(name+"/", n); err != nil {
			return err
		}
	}
	return nil
}

type entry struct {
	name  string
	inode uint64
}

// nothing is the size in bytes that an empty directory states. All directories state as many
// bytes too many.
const nothing = 3

// entries reads a directory, entry by entry. A small image may contain more entries
// than fit into memory.
func (i *Image) entries(dir Inode) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		left := dir.Size - nothing
		if left <= 0 {
			return
		}
		c, err := i.cursor(i.dirTable+dir.start, int(dir.offset))
		if err != nil {
			yield(entry{}, err)
			return
		}
		// The size of the directory bounds the names.
		limited := &io.LimitedReader{R: c, N: left}
		var header [12]byte
		for limited.N > 0 {
			if _, err := io.ReadFull(limited, header[:]); err != nil {
				yield(entry{}, fmt.Errorf("%w: %w", err, ErrCorrupt))
				return
			}
			for range int64(order.Uint32(header[:])) + 1 {
				e, err := readEntry(limited, uint64(order.Uint32(header[4:])))
				if !yield(e, err) || err != nil {
					return
				}
			}
		}
	}
}

func readEntry(from io.Reader, start uint64) (entry, error) {
	var b [8]byte
	if _, err := io.ReadFull(from, b[:]); err != nil {
		return entry{}, fmt.Errorf("%w: %w", unexpected(err), ErrCorrupt)
	}
	name := make([]byte, int(order.Uint16(b[6:]))+1)
	if _, err := io.ReadFull(from, name); err != nil {
		return entry{}, fmt.Errorf("%w: %w", unexpected(err), ErrCorrupt)
	}
	if string(name) == "." || string(name) == ".." || bytes.ContainsAny(name, "/\x00") || len(name) > 255 {
		return entry{}, fmt.Errorf("the name %q: %w", strings.ToValidUTF8(string(name), "?"), ErrCorrupt)
	}
	return entry{string(name), start<<16 | uint64(order.Uint16(b[:]))}, nil
}
