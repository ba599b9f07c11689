// Package tree merges the layers of an image into one read-only tree, as a
// container sees it. It knows inodes, not paths or mounts; package fuse serves
// them to the kernel.
//
// It remembers nothing about lookups: a node's number contains the layer and the
// inode. So a restarted process understands the numbers that the kernel got from
// its predecessor.
package tree

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/layer"
)

// RootID is the number of the root.
const RootID = 1

// ErrNotFound reports that a name or a node does not exist.
var ErrNotFound = errors.New("not found")

// Tree is the merged view. It is safe for concurrent use.
type Tree struct {
	// layers holds the images, the uppermost first. The nodes of each are numbered
	// from its base.
	layers []*erofs.Image
	bases  []uint64
	// maxLinkSteps bounds the work for the links of one directory, and maxMerged the entries
	// that its layers have for it together.
	maxLinkSteps, maxMerged int

	mu    sync.Mutex
	dirs  map[uint64]*Dir
	parts map[inode]*part
	// kept counts the directories in dirs and parts and their entries. entriesRead
	// counts the entries of all parts that were ever read.
	kept, entriesRead int
}

// maxKept is the value of kept beyond which all directories are forgotten.
const maxKept = 1 << 20

// inode identifies an inode of one layer.
type inode struct {
	layer  int
	number uint64
}

// Dir is a merged directory.
type Dir struct {
	// parts holds the directories that were merged, the uppermost first.
	parts []*part
	// Entries is sorted by name.
	Entries []Entry
	// Parent is the number of the parent directory.
	Parent uint64
}

// part is the directory of one layer.
type part struct {
	layer int
	inode erofs.Inode
	// entries lists the layer's entries, including whiteouts.
	entries []erofs.Entry
	// implied is set if the layer does not define the directory's owner and permissions.
	implied bool
	// opaque hides the directories of the layers below.
	opaque bool
}

func (p *part) find(name string) (erofs.Entry, bool) {
	i, found := slices.BinarySearchFunc(p.entries, name, func(e erofs.Entry, name string) int { return strings.Compare(e.Name, name) })
	if !found {
		return erofs.Entry{}, false
	}
	return p.entries[i], true
}

// Entry is a directory entry.
type Entry struct {
	Name string
	ID   uint64
	// Type is the inode's type, encoded as in its mode.
	Type uint16
}

// New returns the tree of layers, the uppermost first; at least one. It reads none yet,
// so that a large or malformed image delays only its own readers.
func New(layers []*erofs.Image) (*Tree, error) {
	if len(layers) == 0 {
		return nil, errors.New("make tree: no layers")
	}
	// A layer may replace every file of the layer below, so all layers together have twice
	// the limit of one.
	t := &Tree{layers: layers, maxLinkSteps: maxLinkSteps, maxMerged: 2 * layers[0].MaxEntries(), dirs: map[uint64]*Dir{}, parts: map[inode]*part{}}
	base := uint64(RootID + 1)
	// Number from the lowest layer up, so that two images with the same lower
	// layers use the same numbers for them.
	t.bases = make([]uint64, len(layers))
	for i := len(layers) - 1; i >= 0; i-- {
		t.bases[i] = base
		base += layers[i].Numbers()
	}
	return t, nil
}

// HasXattrs reports whether any file may have extended attributes that a container
// can see. If it returns false, no file has any.
func (t *Tree) HasXattrs() bool {
	return slices.ContainsFunc(t.layers, func(l *erofs.Image) bool { return l.HasXattrs })
}

func (t *Tree) id(n inode) uint64 { return t.bases[n.layer] + n.number }

// resolve inverts id.
func (t *Tree) resolve(id uint64) (inode, error) {
	for i, base := range t.bases {
		if id >= base && id-base < t.layers[i].Numbers() {
			return inode{i, id - base}, nil
		}
	}
	return inode{}, fmt.Errorf("find node %d: %w", id, ErrNotFound)
}

// Node is a file or directory of the tree.
type Node struct {
	erofs.Inode
	ID    uint64
	layer int
	// Entries is the number of entries of a directory, which were read for this node.
	Entries int
}

// Node returns the node with a number. The error for an unknown number wraps ErrNotFound.
func (t *Tree) Node(id uint64) (Node, error) {
	if id == RootID {
		return t.dirNode(id)
	}
	at, err := t.resolve(id)
	if err != nil {
		return Node{}, err
	}
	n, err := t.layers[at.layer].Inode(at.number)
	if err != nil {
		return Node{}, err
	}
	if n.IsDir() {
		return t.dirNode(id)
	}
	return Node{Inode: n, ID: id, layer: at.layer}, nil
}

func (t *Tree) dirNode(id uint64) (Node, error) {
	dir, err := t.Dir(id)
	if err != nil {
		return Node{}, err
	}
	return dir.node(id), nil
}

// node returns a directory's node, from the topmost layer that defines its
// metadata.
func (d *Dir) node(id uint64) Node {
	says := d.parts[0]
	for _, p := range d.parts {
		if !p.implied {
			says = p
			break
		}
	}
	n := Node{Inode: says.inode, ID: id, layer: says.layer, Entries: len(d.Entries)}
	n.Links = 2
	for _, e := range d.Entries {
		if e.Type == erofs.TypeDir {
			n.Links++
		}
	}
	return n
}

// Lookup returns the node with a name in a directory, or ErrNotFound.
func (t *Tree) Lookup(parent uint64, name string) (Node, error) {
	dir, err := t.Dir(parent)
	if err != nil {
		return Node{}, err
	}
	i, found := slices.BinarySearchFunc(dir.Entries, name, func(e Entry, name string) int { return strings.Compare(e.Name, name) })
	if !found {
		return Node{}, ErrNotFound
	}
	return t.Child(dir, dir.Entries[i])
}

// Child returns the node of an entry of dir.
func (t *Tree) Child(dir *Dir, e Entry) (Node, error) {
	if e.Type != erofs.TypeDir {
		return t.Node(e.ID)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	child, err := t.child(dir, e.Name)
	if err != nil {
		return Node{}, err
	}
	return child.node(e.ID), nil
}

// Dir returns the directory with a number.
func (t *Tree) Dir(id uint64) (*Dir, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dir(id)
}

func (t *Tree) dir(id uint64) (*Dir, error) {
	if dir := t.dirs[id]; dir != nil {
		return dir, nil
	}
	if id == RootID {
		var stack []inode
		for i := range t.layers {
			stack = append(stack, inode{i, erofs.Root})
		}
		return t.merge(id, RootID, stack)
	}
	at, err := t.resolve(id)
	if err != nil {
		return nil, err
	}
	return t.find(at)
}

// find merges a directory, given only its inode in the uppermost layer. It looks up
// the directory's path in that layer, and merges from the root down.
func (t *Tree) find(at inode) (*Dir, error) {
	n, err := t.layers[at.layer].Inode(at.number)
	if err != nil {
		return nil, err
	}
	if !n.IsDir() {
		return nil, fmt.Errorf("read node %d: not a directory: %w", t.id(at), ErrNotFound)
	}
	var path []string
	for number, steps, read := at.number, 0, 0; number != erofs.Root; steps++ {
		name, parent, entries, err := t.nameOf(at.layer, number)
		if err != nil {
			return nil, err
		}
		if read += entries; steps > maxDepth || read > t.maxLinkSteps {
			return nil, fmt.Errorf("read node %d: the directories above it are too many or too large: %w", t.id(at), erofs.ErrCorrupt)
		}
		path = append(path, name)
		number = parent
	}
	dir, err := t.dir(RootID)
	for i := len(path) - 1; i >= 0 && err == nil; i-- {
		dir, err = t.child(dir, path[i])
	}
	if err != nil {
		return nil, err
	}
	if got := (inode{dir.parts[0].layer, dir.parts[0].inode.Number}); got != at {
		return nil, fmt.Errorf("read node %d: it is not the uppermost of its name: %w", t.id(at), ErrNotFound)
	}
	return dir, nil
}

// maxDepth bounds the nesting of directories, because the parents in a malformed
// image may form a cycle.
const maxDepth = 4096

// nameOf returns the name and the parent of a directory within one layer, and how many
// entries it has read.
func (t *Tree) nameOf(level int, number uint64) (name string, parent uint64, read int, err error) {
	image := t.layers[level]
	n, err := image.Inode(number)
	if err != nil {
		return "", 0, 0, err
	}
	own, parent, err := image.Directory(n)
	if err != nil {
		return "", 0, 0, err
	}
	above, err := image.Inode(parent)
	if err != nil {
		return "", 0, 0, err
	}
	entries, _, err := image.Directory(above)
	if err != nil {
		return "", 0, 0, err
	}
	for _, e := range entries {
		if e.Number == number {
			return e.Name, parent, len(own) + len(entries), nil
		}
	}
	return "", 0, 0, fmt.Errorf("find the name of directory %d: %w", number, erofs.ErrCorrupt)
}

// child returns a subdirectory.
func (t *Tree) child(dir *Dir, name string) (*Dir, error) {
	stack := subdirectories(dir.parts, name)
	if len(stack) == 0 {
		return nil, fmt.Errorf("find directory %q: %w", name, ErrNotFound)
	}
	id := t.id(stack[0])
	if there := t.dirs[id]; there != nil {
		return there, nil
	}
	return t.merge(id, dir.ownID(t), stack)
}

// subdirectories returns the directories with a name in the parts of their parent,
// the uppermost first.
func subdirectories(parts []*part, name string) (stack []inode) {
	for _, p := range parts {
		e, found := p.find(name)
		if !found {
			continue
		}
		if e.Type != erofs.TypeDir {
			break // a file or a whiteout hides what lies below
		}
		stack = append(stack, inode{p.layer, e.Number})
	}
	return stack
}

// ownID returns the number of the directory itself.
func (d *Dir) ownID(t *Tree) uint64 {
	if d.parts[0].inode.Number == erofs.Root {
		return RootID
	}
	return t.id(inode{d.parts[0].layer, d.parts[0].inode.Number})
}

// merge merges the directories of several layers, the uppermost first, and keeps
// the result.
func (t *Tree) merge(id, parent uint64, stack []inode) (*Dir, error) {
	parts, err := t.readParts(stack)
	if err != nil {
		return nil, err
	}
	dir := &Dir{Parent: parent, parts: parts}
	links := linkResolver{t, t.maxLinkSteps}
	seen := map[string]bool{}
	for i, p := range dir.parts {
		for _, e := range p.entries {
			if seen[e.Name] {
				continue
			}
			if i < len(dir.parts)-1 {
				seen[e.Name] = true
			}
			own, found, err := links.entry(p.layer, e)
			if err != nil {
				return nil, err
			}
			if found {
				dir.Entries = append(dir.Entries, own)
			}
		}
	}
	if len(dir.parts) > 1 {
		slices.SortFunc(dir.Entries, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	}
	t.keep(len(dir.Entries) + 1)
	t.dirs[id] = dir
	return dir, nil
}

// readParts reads the directories of several layers, the uppermost first, down
// to one that hides the rest.
func (t *Tree) readParts(stack []inode) (parts []*part, err error) {
	read := 0
	for _, at := range stack {
		p, err := t.readPart(at)
		if err != nil {
			return nil, err
		}
		if read += len(p.entries); read > t.maxMerged {
			return nil, fmt.Errorf("read a directory of %d layers with more than %d entries together: %w: %w", len(stack), t.maxMerged, erofs.ErrTooLarge, erofs.ErrCorrupt)
		}
		parts = append(parts, p)
		if p.opaque {
			break
		}
	}
	return parts, nil
}

// readPart reads the directory of one layer and keeps it.
func (t *Tree) readPart(at inode) (*part, error) {
	if p := t.parts[at]; p != nil {
		return p, nil
	}
	image := t.layers[at.layer]
	p := &part{layer: at.layer}
	var err error
	if p.inode, err = image.Inode(at.number); err != nil {
		return nil, err
	}
	if p.entries, _, err = image.Directory(p.inode); err != nil {
		return nil, err
	}
	all, err := image.Xattrs(p.inode)
	if err != nil {
		return nil, err
	}
	for _, x := range all {
		p.opaque = p.opaque || x.Name == layer.OpaqueXattr
		p.implied = p.implied || x.Name == layer.ImpliedXattr
	}
	t.entriesRead += len(p.entries)
	t.keep(len(p.entries) + 1)
	t.parts[at] = p
	return p, nil
}

// keep counts entries that are about to be kept. If kept is above maxKept, it first
// forgets all others.
func (t *Tree) keep(entries int) {
	if t.kept > maxKept {
		clear(t.dirs)
		clear(t.parts)
		t.kept = 0
	}
	t.kept += entries
}

// ReadAt reads content of a file. It returns fewer bytes than requested only at the
// end of the file.
func (t *Tree) ReadAt(n Node, into []byte, at int64) (int, error) {
	return t.layers[n.layer].ReadAt(n.Inode, into, at)
}

// Link returns the target of a symbolic link.
func (t *Tree) Link(n Node) (string, error) { return t.layers[n.layer].Link(n.Inode) }

// Xattrs returns the extended attributes that a container may see.
func (t *Tree) Xattrs(n Node) ([]erofs.Xattr, error) {
	all, err := t.layers[n.layer].Xattrs(n.Inode)
	return slices.DeleteFunc(all, func(x erofs.Xattr) bool {
		// Hide this program's own attributes, and attributes that overlayfs would
		// take for its own.
		return strings.HasPrefix(x.Name, "trusted.") || strings.HasPrefix(x.Name, "user.overlay.")
	}), err
}
