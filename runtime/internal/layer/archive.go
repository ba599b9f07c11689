package layer

import (
	"archive/tar"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/erofs"
)

// Archive writes the image of a layer as a tar archive again. The result is the same layer,
// but its bytes usually differ from the original archive. Archive counts the entries against the limits
// of most, because the inodes of a malformed image may share entries and content.
func Archive(image *erofs.Image, to io.Writer, most *budget.Layer) error {
	a := archiver{image, tar.NewWriter(to), most, map[uint64]string{}, map[uint64]bool{}, nil}
	root, err := image.Inode(erofs.Root)
	if err == nil {
		err = a.directory("", root, 0)
	}
	// Write whiteouts last, because hard links of this layer may refer to files that the
	// whiteouts hide.
	for _, name := range a.hidden {
		if err == nil {
			err = a.empty(path.Dir(name) + "/" + whiteoutPrefix + path.Base(name))
		}
	}
	if err == nil {
		err = a.to.Close()
	}
	if err != nil {
		return fmt.Errorf("write archive of layer: %w", err)
	}
	return nil
}

type archiver struct {
	image *erofs.Image
	to    *tar.Writer
	most  *budget.Layer
	// names maps inodes to the names under which they were written.
	names map[uint64]string
	// entered holds the directories that were visited, because each must have one name.
	entered map[uint64]bool
	// hidden holds the paths of whiteouts.
	hidden []string
}

// directory writes a directory and its content. The name of the root is "".
func (a *archiver) directory(name string, n erofs.Inode, depth int) error {
	if a.entered[n.Number] || depth > maxDepth {
		return fmt.Errorf("directory %q is in itself: %w", name, erofs.ErrCorrupt)
	}
	a.entered[n.Number] = true
	xattrs, err := a.image.Xattrs(n)
	if err != nil {
		return err
	}
	isOpaque, isImplied := false, false
	for _, x := range xattrs {
		isOpaque = isOpaque || x.Name == OpaqueXattr
		isImplied = isImplied || x.Name == ImpliedXattr
	}
	if !isImplied {
		header := a.header(name+"/", n, xattrs)
		header.Typeflag = tar.TypeDir
		if err := a.write(header); err != nil {
			return err
		}
	}
	if isOpaque {
		if err := a.empty(path.Join(name, opaqueMarker)); err != nil {
			return err
		}
	}
	entries, _, err := a.image.Directory(n)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := a.entry(path.Join(name, e.Name), e.Number, depth); err != nil {
			return fmt.Errorf("%q: %w", path.Join(name, e.Name), err)
		}
	}
	return nil
}

// write counts an entry and writes its header.
func (a *archiver) write(header *tar.Header) error {
	if err := a.most.Entry(header); err != nil {
		return err
	}
	return a.to.WriteHeader(header)
}

// empty writes an empty file, such as a whiteout.
func (a *archiver) empty(name string) error {
	return a.write(&tar.Header{Name: strings.TrimPrefix(name, "./"), Typeflag: tar.TypeReg, Format: tar.FormatPAX})
}

func (a *archiver) entry(name string, number uint64, depth int) error {
	n, err := a.image.Inode(number)
	if err != nil {
		return err
	}
	if n.IsDir() {
		return a.directory(name, n, depth+1)
	}
	xattrs, err := a.image.Xattrs(n)
	if err != nil {
		return err
	}
	header := a.header(name, n, xattrs)
	if n.Mode&erofs.TypeMask == erofs.TypeChar && n.Device == 0 {
		a.hidden = append(a.hidden, name)
		return a.most.Keep(len(name))
	}
	first, again := a.names[number]
	if !again {
		a.names[number] = name
	}
	for _, x := range xattrs {
		if x.Name == LinkXattr {
			first, again = string(x.Value), true
		}
	}
	if again {
		return a.write(&tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: first, Format: tar.FormatPAX})
	}
	switch n.Mode & erofs.TypeMask {
	case erofs.TypeRegular:
		header.Typeflag, header.Size = tar.TypeReg, n.Size
		if err := a.write(header); err != nil {
			return err
		}
		_, err := io.Copy(a.to, io.NewSectionReader(content{a.image, n}, 0, n.Size))
		return err
	case erofs.TypeSymlink:
		header.Typeflag = tar.TypeSymlink
		if header.Linkname, err = a.image.Link(n); err != nil {
			return err
		}
	case erofs.TypeChar:
		header.Typeflag = tar.TypeChar
	case erofs.TypeBlock:
		header.Typeflag = tar.TypeBlock
	case erofs.TypeFIFO:
		header.Typeflag = tar.TypeFifo
	default:
		return fmt.Errorf("a file of type %#o: %w", n.Mode&erofs.TypeMask, erofs.ErrCorrupt)
	}
	return a.write(header)
}

// content reads one file.
type content struct {
	image *erofs.Image
	inode erofs.Inode
}

func (c content) ReadAt(into []byte, at int64) (int, error) {
	n, err := c.image.ReadAt(c.inode, into, at)
	if err == nil && n < len(into) {
		err = io.EOF
	}
	return n, err
}

// header returns the header fields that all kinds of files share.
func (a *archiver) header(name string, n erofs.Inode, xattrs []erofs.Xattr) *tar.Header {
	if name == "/" {
		name = "./"
	}
	header := &tar.Header{
		Name: name, Mode: int64(n.Mode & 0o7777), Uid: int(n.UID), Gid: int(n.GID), Format: tar.FormatPAX,
		ModTime: time.Unix(n.Seconds, int64(n.Nanoseconds)), PAXRecords: map[string]string{},
	}
	header.Devmajor, header.Devminor = erofs.DeviceParts(n.Device)
	for _, x := range xattrs {
		if !strings.HasPrefix(x.Name, "trusted.") {
			header.PAXRecords[paxXattr+x.Name] = string(x.Value)
		}
	}
	return header
}
