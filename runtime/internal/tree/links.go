package tree

import (
	"errors"
	"fmt"
	"strings"

	"berth.dev/berth/runtime/internal/erofs"
	"berth.dev/berth/runtime/internal/layer"
)

// maxLinkSteps bounds the work for the hard links of one directory to files of
// lower layers: about two seconds. A step looks for a name in one layer or reads one entry
// of a directory that is not in memory. Ten thousand links with paths of six names in an
// image of 30 layers take two million steps.
const maxLinkSteps = 1 << 24

// ErrLinks wraps the errors of directories with too many hard links to files of
// lower layers.
var ErrLinks = errors.New("hard links to files of lower layers take too long to resolve")

// linkResolver resolves the hard links of one directory to files of lower layers.
//
// A link stands for the file at its path in the layers below the link's own. That
// file may be another link, but only to layers further below. So a chain is no
// longer than the image has layers.
//
// Each path is looked up in the directories of single layers. A merged tree of the
// lower layers would resolve all links of a directory to find one of them. Such
// trees below each other would take time exponential in the number of layers.
type linkResolver struct {
	*Tree
	// left is the number of steps that are still permitted.
	left int
}

// entry returns the tree's entry for a layer's entry. A whiteout, or a link without
// a target, has none.
func (r *linkResolver) entry(level int, e erofs.Entry) (own Entry, found bool, err error) {
	name := e.Name
	for e.Type == erofs.TypeChar {
		target, kind, err := r.special(level, e)
		switch {
		case err != nil || kind == whiteout:
			return own, false, err
		case kind == device:
			return Entry{name, r.id(inode{level, e.Number}), e.Type}, true, nil
		}
		if level, e, found, err = r.lookUpBelow(level, target); err != nil || !found {
			return own, false, err // a link without a target is omitted
		}
	}
	return Entry{name, r.id(inode{level, e.Number}), e.Type}, true, nil
}

// charKind is the meaning of a character device in a layer.
type charKind int

const (
	device charKind = iota
	whiteout
	link
)

// special returns the meaning of a character device, and the target if it is a
// link.
func (r *linkResolver) special(level int, e erofs.Entry) (target string, kind charKind, err error) {
	n, err := r.layers[level].Inode(e.Number)
	if err != nil || n.Device != 0 && n.Device != layer.LinkDevice {
		return "", device, err
	}
	all, err := r.layers[level].Xattrs(n)
	for _, x := range all {
		if x.Name == layer.LinkXattr {
			return string(x.Value), link, err
		}
	}
	return "", whiteout, err
}

// lookUpBelow looks a path up in the layers below a layer, and returns the uppermost match
// and its layer. It does not find directories, because they have no hard
// links.
func (r *linkResolver) lookUpBelow(level int, path string) (at int, e erofs.Entry, found bool, err error) {
	var stack []inode
	for i := level + 1; i < len(r.layers); i++ {
		stack = append(stack, inode{i, erofs.Root})
	}
	for len(stack) > 0 {
		parts, err := r.read(stack)
		if err != nil {
			return 0, e, false, err
		}
		name, rest, more := strings.Cut(path, "/")
		if !more {
			for _, p := range parts {
				if e, found = p.find(name); found {
					return p.layer, e, e.Type != erofs.TypeDir, nil
				}
			}
			return 0, e, false, nil
		}
		stack, path = subdirectories(parts, name), rest
	}
	return 0, e, false, nil
}

// read reads the directories of several layers and counts the steps.
func (r *linkResolver) read(stack []inode) ([]*part, error) {
	before := r.entriesRead
	parts, err := r.readParts(stack)
	r.left -= len(parts) + r.entriesRead - before
	if err == nil && r.left < 0 {
		err = fmt.Errorf("%w: more than %d steps", ErrLinks, r.maxLinkSteps)
	}
	return parts, err
}
