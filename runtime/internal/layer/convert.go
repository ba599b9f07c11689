// Package layer makes an EROFS image of a layer's tar archive. It records what the
// archive changes in the layers below in a form that package tree reads. It neither
// decompresses archives nor stores images.
package layer

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/erofs"
)

// Marks that change the layers below, as overlayfs stores them: a character device
// 0:0 hides a name, and an attribute hides the content of a directory.
const (
	OpaqueXattr = "trusted.overlay.opaque"
	// LinkXattr belongs to a character device 0:1, which stands for a hard link to
	// a file of the layers below. Its value is the path.
	LinkXattr = "trusted.berth.link"
	// ImpliedXattr marks a directory that occurs only in paths of the archive,
	// which defines neither its owner nor its permissions.
	ImpliedXattr = "trusted.berth.implied"

	whiteoutPrefix = ".wh."
	whiteoutMeta   = ".wh..wh."
	opaqueMarker   = ".wh..wh..opq"
	// paxXattr begins the names of records that hold extended attributes.
	paxXattr = "SCHILY.xattr."
)

// LinkDevice is the number of the device with a LinkXattr: minor 1 of major 0, which no
// driver has.
const LinkDevice = 1

// maxDepth bounds the depth of directories. A path of 4,096 bytes cannot name a deeper one.
const maxDepth = 2048

// Convert reads a tar archive to its end and writes its image to file, which must
// be empty. It counts all that it uses against the limits of most, and passes each
// header to each of the functions see.
func Convert(archive io.Reader, file *os.File, most *budget.Layer, see ...func(*tar.Header)) error {
	c := newConverter(file, most)
	if err := c.writer.Describe(c.writer.Root(), implied()); err != nil {
		return err
	}
	reader := tar.NewReader(most.Archive(archive))
	for {
		header, err := budget.Next(reader)
		if errors.Is(err, io.EOF) {
			c.record()
			return c.writer.Close()
		}
		if err != nil {
			return fmt.Errorf("read archive of layer: %w", err)
		}
		for _, show := range see {
			show(header)
		}
		if err := c.add(header, reader); err != nil {
			return fmt.Errorf("read archive of layer: %s: %w", quote(header.Name), err)
		}
	}
}

// quote returns a name for an error, cut where it is long.
func quote(name string) string {
	if len(name) > maxQuoted {
		return strconv.Quote(strings.ToValidUTF8(name[:maxQuoted], "")) + "..."
	}
	return strconv.Quote(name)
}

// maxQuoted bounds a name in an error, in bytes.
const maxQuoted = 256

// Lay writes the image of a layer whose files have no content yet to file, which
// must be empty. entries puts the headers in the order of the archive; put
// returns the offset for the content of a regular file. Lay counts all that it uses
// against the limits of most.
func Lay(file *os.File, most *budget.Layer, entries func(put func(*tar.Header) (int64, error)) error) error {
	var at int64
	c := newConverter(file, most)
	c.space = &at
	if err := c.writer.Describe(c.writer.Root(), implied()); err != nil {
		return err
	}
	if err := entries(func(header *tar.Header) (int64, error) {
		at = 0
		if err := c.add(header, strings.NewReader("")); err != nil {
			return 0, fmt.Errorf("%s: %w", quote(header.Name), err)
		}
		return at, nil
	}); err != nil {
		return err
	}
	c.record()
	return c.writer.Close()
}

type converter struct {
	writer *erofs.Writer
	// links maps the symbolic links of the layer to their targets.
	links  map[*erofs.Node]string
	owners owners
	most   *budget.Layer
	// space receives the offset for the content of the last regular file, if the
	// content arrives later.
	space *int64
}

func newConverter(file *os.File, most *budget.Layer) converter {
	c := converter{writer: erofs.NewWriter(file), links: map[*erofs.Node]string{}, owners: owners{}, most: most}
	c.writer.MultiplyLimits(most.Times())
	return c
}

func implied() erofs.Meta {
	return erofs.Meta{Mode: erofs.TypeDir | 0o755, Xattrs: []erofs.Xattr{{Name: ImpliedXattr, Value: []byte("y")}}}
}

// add adds an entry of the archive to the image.
func (c converter) add(header *tar.Header, content io.Reader) error {
	if err := c.most.Entry(header); err != nil {
		return err
	}
	name := Clean(header.Name)
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if c.owners.add(header) {
		if err := c.most.Keep(ownerSize); err != nil {
			return err
		}
	}
	switch header.Typeflag {
	case tar.TypeDir:
		return c.addDirectory(name, header)
	}
	if name == "" {
		return errors.New("only a directory can be the root")
	}
	dir, err := c.directory(path.Dir(name))
	if err != nil {
		return err
	}
	base := path.Base(name)
	switch {
	case base == opaqueMarker:
		return c.makeOpaque(dir)
	case strings.HasPrefix(base, whiteoutMeta):
		return nil // an entry of AUFS, without meaning here
	case strings.HasPrefix(base, whiteoutPrefix):
		base = strings.TrimPrefix(base, whiteoutPrefix)
		if there := dir.Child(base); there != nil {
			// A whiteout hides the lower layers, not other entries of this layer.
			if there.IsDir() {
				return c.makeOpaque(there)
			}
			return nil
		}
		header = &tar.Header{Typeflag: tar.TypeChar}
	case header.Typeflag == tar.TypeLink:
		target, err := c.find(Clean(header.Linkname))
		if err != nil {
			return fmt.Errorf("hard link to %q: %w", header.Linkname, err)
		}
		return c.writer.Link(dir, base, target)
	}
	meta, err := describe(header)
	if err != nil {
		return err
	}
	size := int64(0)
	switch meta.Mode & erofs.TypeMask {
	case erofs.TypeRegular:
		size = header.Size
	case erofs.TypeSymlink:
		content, size = strings.NewReader(header.Linkname), int64(len(header.Linkname))
	}
	var n *erofs.Node
	if c.space != nil && meta.Mode&erofs.TypeMask == erofs.TypeRegular && size > 0 {
		n, *c.space, err = c.writer.Space(meta, size)
	} else {
		n, err = c.writer.File(meta, content, size)
	}
	if err != nil {
		return err
	}
	if header.Typeflag == tar.TypeSymlink {
		c.links[n] = header.Linkname
	}
	return c.writer.Link(dir, base, n)
}

// addDirectory adds a directory, or sets the metadata of an existing one.
func (c converter) addDirectory(name string, header *tar.Header) error {
	meta, err := describe(header)
	if err != nil {
		return err
	}
	if name == "" {
		return c.describe(c.writer.Root(), meta)
	}
	parent, err := c.directory(path.Dir(name))
	if err != nil {
		return err
	}
	if there := parent.Child(path.Base(name)); there != nil && there.IsDir() {
		return c.describe(there, meta)
	}
	_, err = c.newDirectory(parent, path.Base(name), meta)
	return err
}

// newDirectory creates a directory, and replaces an existing file of that name. If
// the file was a whiteout, the directory hides the lower layers, too.
func (c converter) newDirectory(parent *erofs.Node, name string, meta erofs.Meta) (*erofs.Node, error) {
	if there := parent.Child(name); there != nil && isWhiteout(there) {
		meta.Xattrs = append(meta.Xattrs, opaque())
	}
	dir, err := c.writer.Dir(meta)
	if err != nil {
		return nil, err
	}
	return dir, c.writer.Link(parent, name, dir)
}

func isWhiteout(n *erofs.Node) bool {
	return n.Meta().Mode&erofs.TypeMask == erofs.TypeChar && n.Meta().Device == 0
}

// describe sets the metadata of a directory, and keeps it opaque if it is.
func (c converter) describe(dir *erofs.Node, meta erofs.Meta) error {
	if slices.ContainsFunc(dir.Meta().Xattrs, func(x erofs.Xattr) bool { return x.Name == OpaqueXattr }) {
		meta.Xattrs = append(meta.Xattrs, opaque())
	}
	return c.writer.Describe(dir, meta)
}

func opaque() erofs.Xattr { return erofs.Xattr{Name: OpaqueXattr, Value: []byte("y")} }

func (c converter) makeOpaque(dir *erofs.Node) error {
	meta := dir.Meta()
	meta.Xattrs = append(slices.Clone(meta.Xattrs), opaque())
	return c.writer.Describe(dir, meta)
}

// maxHops bounds the symbolic links on the way to a directory.
const maxHops = 40

// directory returns the directory of a path, and makes the missing parts. It
// follows links of this layer, but never out of the root. It does not know links
// of layers below.
func (c converter) directory(name string) (*erofs.Node, error) { return c.walk(name, true) }

func (c converter) walk(name string, create bool) (*erofs.Node, error) {
	dir := c.writer.Root()
	words := strings.Split(Clean(name), "/")
	for hops, depth := 0, 0; len(words) > 0; {
		word := words[0]
		words = words[1:]
		if err := c.most.Step(); err != nil {
			return nil, err
		}
		switch word {
		case "", ".":
			continue
		case "..":
			dir, depth = dir.Parent(), max(0, depth-1)
			continue
		}
		next := dir.Child(word)
		if create && (next == nil || isWhiteout(next)) {
			var err error
			if err := c.most.Directory(len(word)); err != nil {
				return nil, err
			}
			if next, err = c.newDirectory(dir, word, implied()); err != nil {
				return nil, err
			}
		}
		switch target, link := c.links[next]; {
		case next == nil:
			return nil, fmt.Errorf("%q is not in the layer", word)
		case next.IsDir():
			dir = next
			depth++
		case link && hops < maxHops:
			hops++
			if strings.HasPrefix(target, "/") {
				dir, depth = c.writer.Root(), 0
			}
			words = append(strings.Split(target, "/"), words...)
		default:
			return nil, fmt.Errorf("%q is not a directory", word)
		}
		if depth > maxDepth {
			return nil, fmt.Errorf("more than %d directories in each other", maxDepth)
		}
	}
	return dir, nil
}

// find returns a file of this layer, or a node that stands for a file of the layers
// below.
func (c converter) find(name string) (*erofs.Node, error) {
	var n *erofs.Node
	if dir, err := c.walk(path.Dir(name), false); err == nil {
		n = dir.Child(path.Base(name))
	}
	switch {
	case n == nil || isWhiteout(n):
		return c.writer.File(erofs.Meta{
			Mode: erofs.TypeChar, Device: LinkDevice, Xattrs: []erofs.Xattr{{Name: LinkXattr, Value: []byte(name)}},
		}, nil, 0)
	case n.IsDir():
		return nil, errors.New("it is a directory")
	}
	return n, nil
}

// Clean returns a name relative to the root, and "" for the root itself. Names that
// lead above the root end at the root, as in every container.
func Clean(name string) string { return path.Clean("/" + name)[1:] }

var types = map[byte]uint16{
	tar.TypeReg: erofs.TypeRegular, '\x00': erofs.TypeRegular, tar.TypeCont: erofs.TypeRegular, tar.TypeGNUSparse: erofs.TypeRegular,
	tar.TypeDir: erofs.TypeDir, tar.TypeSymlink: erofs.TypeSymlink,
	tar.TypeChar: erofs.TypeChar, tar.TypeBlock: erofs.TypeBlock, tar.TypeFifo: erofs.TypeFIFO,
}

// maxID is the largest user or group id; the next number means none.
const maxID = 1<<32 - 2

func describe(header *tar.Header) (erofs.Meta, error) {
	kind, known := types[header.Typeflag]
	if !known {
		return erofs.Meta{}, fmt.Errorf("entry of unknown type %q", header.Typeflag)
	}
	if header.Uid < 0 || header.Gid < 0 || header.Uid > maxID || header.Gid > maxID {
		return erofs.Meta{}, fmt.Errorf("owner %d:%d is impossible", header.Uid, header.Gid)
	}
	meta := erofs.Meta{
		Mode: kind | uint16(header.Mode)&0o7777,
		UID:  uint32(header.Uid), GID: uint32(header.Gid),
		Seconds: header.ModTime.Unix(), Nanoseconds: uint32(header.ModTime.Nanosecond()),
	}
	if kind == erofs.TypeSymlink {
		meta.Mode = kind | 0o777 // whatever the archive says
	}
	if header.ModTime.IsZero() {
		meta.Seconds = 0
	}
	if kind == erofs.TypeChar || kind == erofs.TypeBlock {
		meta.Device = erofs.DeviceNumber(uint32(header.Devmajor), uint32(header.Devminor))
	}
	for _, key := range slices.Sorted(maps.Keys(header.PAXRecords)) {
		// Attributes with other prefixes are dropped. In particular, an archive must not
		// set the attributes with the prefix trusted that this package uses as marks.
		name, found := strings.CutPrefix(key, paxXattr)
		if found && (strings.HasPrefix(name, "user.") || strings.HasPrefix(name, "security.")) {
			meta.Xattrs = append(meta.Xattrs, erofs.Xattr{Name: name, Value: []byte(header.PAXRecords[key])})
		}
	}
	return meta, nil
}
