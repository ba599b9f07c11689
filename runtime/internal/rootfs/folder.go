// Package rootfs writes the tree of an image into a folder, as files that all
// belong to the caller. It needs no privileges, and the files grant none. It
// neither makes the tree nor uses the folder.
package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/tree"
)

// Left counts the parts of a tree that are missing or different in the folder.
type Left struct {
	// Special counts the omitted devices, pipes and sockets. Attributes counts the
	// omitted extended attributes.
	Special, Attributes int
	// Owners counts the files and directories that do not belong to root in the
	// image. SetID counts the files with set-user or set-group bits.
	Owners, SetID int
}

const (
	// piece is the size of a write in bytes.
	piece = 1 << 20
	// maxDepth bounds nested directories, because each stays open.
	maxDepth = 500
)

// Write writes a tree into an empty folder, and counts what is left out. After an error the
// caller removes the content. The files count against the limits of most, because the inodes of a malformed
// image may share entries and content. count receives the number of written bytes.
func Write(ctx context.Context, from *tree.Tree, to *os.Root, most *budget.Layer, count func(int)) (Left, error) {
	w := writer{ctx: ctx, from: from, top: to, most: most, entered: map[uint64]bool{}, names: map[uint64]string{}, buffer: make([]byte, piece), count: count}
	root, err := from.Node(tree.RootID)
	if err == nil {
		err = w.directory(root, to, "")
	}
	if err != nil {
		return w.left, fmt.Errorf("write files of image: %w", err)
	}
	return w.left, nil
}

type writer struct {
	ctx  context.Context
	from *tree.Tree
	top  *os.Root
	most *budget.Layer
	// entered holds the directories that were visited, because each must have one name.
	entered map[uint64]bool
	// names maps an inode to its first path. Further paths become hard links.
	names  map[uint64]string
	left   Left
	buffer []byte
	count  func(int)
	depth  int
}

// directory fills a directory, and then sets its mode and time.
func (w *writer) directory(n tree.Node, dir *os.Root, name string) error {
	if w.depth++; w.depth > maxDepth {
		return fmt.Errorf("more than %d directories in each other", maxDepth)
	}
	defer func() { w.depth-- }()
	if w.entered[n.ID] {
		return fmt.Errorf("directory %q has another name: %w", name, erofs.ErrCorrupt)
	}
	w.entered[n.ID] = true
	merged, err := w.from.Dir(n.ID)
	if err != nil {
		return fmt.Errorf("%q: %w", name, err)
	}
	for _, e := range merged.Entries {
		if err := context.Cause(w.ctx); err != nil {
			return err
		}
		child, err := w.from.Child(merged, e)
		if err == nil {
			err = w.entry(child, dir, e.Name, path.Join(name, e.Name))
		}
		if err != nil {
			return err
		}
	}
	if err := w.describe(n); err != nil {
		return err
	}
	// The owner must be able to enter and empty the directory.
	mode := fs.FileMode(n.Mode)&0o777 | 0o700
	if n.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	if err := dir.Chmod(".", mode); err != nil {
		return err
	}
	return dir.Chtimes(".", time.Time{}, modified(n))
}

func modified(n tree.Node) time.Time { return time.Unix(n.Seconds, int64(n.Nanoseconds)) }

// entry writes one directory entry. full is its path below the root.
func (w *writer) entry(n tree.Node, dir *os.Root, name, full string) error {
	kind := n.Mode & erofs.TypeMask
	first, again := w.names[n.ID]
	counts := entryTypes[kind]
	if again {
		counts = tar.TypeLink
	}
	if err := w.most.Entry(&tar.Header{Name: full, Typeflag: counts, Size: n.Size}); err != nil {
		return err
	}
	if kind == erofs.TypeDir {
		// The final mode might not permit filling the directory.
		if err := dir.Mkdir(name, 0o700); err != nil {
			return err
		}
		own, err := dir.OpenRoot(name)
		if err != nil {
			return err
		}
		defer own.Close()
		return w.directory(n, own, full)
	}
	if again {
		return w.top.Link(first, full)
	}
	switch kind {
	case erofs.TypeSymlink:
		target, err := w.from.Link(n)
		if err == nil {
			err = dir.Symlink(target, name)
		}
		if err != nil {
			return err
		}
	case erofs.TypeRegular:
		if err := w.file(n, dir, name); err != nil {
			return fmt.Errorf("%q: %w", full, err)
		}
	default:
		w.left.Special++
		return nil
	}
	// An inode records the links in its layer, not in the tree. So remember every
	// inode.
	w.names[n.ID] = full
	return w.describe(n)
}

// entryTypes maps the types of files that are written to types of an archive's entries.
var entryTypes = map[uint16]byte{erofs.TypeDir: tar.TypeDir, erofs.TypeRegular: tar.TypeReg, erofs.TypeSymlink: tar.TypeSymlink}

// describe counts the metadata that cannot be kept.
func (w *writer) describe(n tree.Node) error {
	if n.UID != 0 || n.GID != 0 {
		w.left.Owners++
	}
	if n.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 && !n.IsDir() {
		w.left.SetID++
	}
	if !w.from.HasXattrs() {
		return nil
	}
	attributes, err := w.from.Xattrs(n)
	w.left.Attributes += len(attributes)
	return err
}

func (w *writer) file(n tree.Node, dir *os.Root, name string) (err error) {
	file, err := dir.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	// Some file systems report a full disk only on close.
	defer func() { err = errors.Join(err, file.Close()) }()
	for at := int64(0); at < n.Size; {
		if err := context.Cause(w.ctx); err != nil {
			return err
		}
		part := w.buffer[:min(piece, n.Size-at)]
		read, err := w.from.ReadAt(n, part, at)
		if err != nil {
			return err
		}
		if read < len(part) {
			return fmt.Errorf("it ends at byte %d: %w", at+int64(read), erofs.ErrCorrupt)
		}
		// Blocks of zeros become holes.
		if !bytes.Equal(part, zeros[:len(part)]) {
			if _, err := file.WriteAt(part, at); err != nil {
				return err
			}
		}
		at += int64(read)
		w.count(read)
	}
	if err := file.Truncate(n.Size); err != nil {
		return err
	}
	// Set-user bits are dropped, because the file gets another owner. The owner may
	// always read the file, like root in the image.
	if err := file.Chmod(fs.FileMode(n.Mode)&0o777 | 0o400); err != nil {
		return err
	}
	return dir.Chtimes(name, time.Time{}, modified(n))
}

var zeros = make([]byte, piece)
