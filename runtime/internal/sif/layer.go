package sif

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/squashfs"
)

const (
	// own is the folder in which an image says of itself what it is.
	own         = ".singularity.d/"
	labelsFile  = own + "labels.json"
	environment = own + "env/"
	// maxText bounds what is read of a file there.
	maxText = 1 << 20
)

// Layer writes the file system as the archive of a layer, and returns the
// configuration that goes with it, but for the layer's digest.
func (f *File) Layer(to io.Writer) (ocispec.Image, error) {
	l := layer{f.root, tar.NewWriter(to), map[uint32]string{}, map[string]string{}}
	err := f.root.Walk(l.add)
	if err == nil {
		err = l.archive.Close()
	}
	return configuration(f.Architecture, l.texts), err
}

type layer struct {
	root    *squashfs.Image
	archive *tar.Writer
	// first is under which name an inode with several was written.
	first map[uint32]string
	// texts is what the image says of itself.
	texts map[string]string
}

func (l layer) add(name string, n squashfs.Inode) error {
	if strings.HasPrefix(path.Base(name), ".wh.") {
		return nil // in a layer it would hide something
	}
	header, known := describe(name, n)
	if !known {
		return nil // a socket, which no archive can hold
	}
	if target, again := l.first[n.Number]; again && n.Kind != squashfs.Dir {
		header.Typeflag, header.Linkname, header.Size = tar.TypeLink, target, 0
		return l.archive.WriteHeader(header)
	}
	if n.Links > 1 && n.Kind != squashfs.Dir {
		l.first[n.Number] = name
	}
	if err := l.archive.WriteHeader(header); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	if n.Kind != squashfs.File {
		return nil
	}
	var text bytes.Buffer
	into := io.Writer(l.archive)
	about := n.Size <= maxText && (name == labelsFile || strings.HasPrefix(name, environment))
	if about {
		into = io.MultiWriter(into, &text)
	}
	if _, err := io.Copy(into, l.root.Content(n)); err != nil {
		return fmt.Errorf("read %q: %w", name, err)
	}
	if about {
		l.texts[name] = text.String()
	}
	return nil
}

// describe is what an archive says of an inode.
func describe(name string, n squashfs.Inode) (*tar.Header, bool) {
	header := &tar.Header{
		Name: name, Mode: int64(n.Mode), Uid: int(n.UID), Gid: int(n.GID), ModTime: n.Time, Format: tar.FormatPAX,
	}
	switch n.Kind {
	case squashfs.Dir:
		header.Typeflag = tar.TypeDir
		header.Name += "/"
	case squashfs.File:
		header.Typeflag, header.Size = tar.TypeReg, n.Size
	case squashfs.Symlink:
		header.Typeflag, header.Linkname = tar.TypeSymlink, n.Target
	case squashfs.Char:
		header.Typeflag, header.Devmajor, header.Devminor = tar.TypeChar, n.Major(), n.Minor()
	case squashfs.Block:
		header.Typeflag, header.Devmajor, header.Devminor = tar.TypeBlock, n.Major(), n.Minor()
	case squashfs.FIFO:
		header.Typeflag = tar.TypeFifo
	default:
		return nil, false
	}
	header.PAXRecords = map[string]string{}
	for _, x := range n.Xattrs {
		// Records cannot have every name; none that means something is like that.
		if !strings.ContainsAny(x.Name, "=\x00") && len(x.Value) > 0 {
			header.PAXRecords["SCHILY.xattr."+x.Name] = string(x.Value)
		}
	}
	return header, true
}
