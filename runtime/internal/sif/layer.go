package sif

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"path"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/squashfs"
)

const (
	// own is the folder with an image's description of itself.
	own         = ".singularity.d/"
	labelsFile  = own + "labels.json"
	environment = own + "env/"
	// maxText bounds the bytes of a file that is read there, and maxTexts their sum.
	maxText  = 1 << 20
	maxTexts = 8 << 20
	// linkKept is the memory for a file with hard links in bytes, without its name.
	linkKept = 64
)

// Layer writes the file system as the archive of a layer, and returns the matching
// configuration, without the layer's digest.
func (f *File) Layer(to io.Writer) (ocispec.Image, error) {
	archive := tar.NewWriter(to)
	e := newEntries(f)
	err := f.root.Walk(func(name string, n squashfs.Inode) error {
		header, err := e.header(name, n)
		if header == nil {
			return err
		}
		if err := f.most.Entry(header); err != nil {
			return fmt.Errorf("read %q: %w", name, err)
		}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write %q: %w", name, err)
		}
		if header.Typeflag != tar.TypeReg {
			return nil
		}
		return e.copyContent(name, n, archive)
	})
	if err == nil {
		err = archive.Close()
	}
	return configuration(f.Architecture, e.texts), err
}

// entries converts the file system's entries to entries of a layer.
type entries struct {
	root *squashfs.Image
	most *budget.Layer
	// first holds the first name of each inode that has several names.
	first map[uint32]string
	// texts holds the image's description.
	texts map[string]string
	// textBytes is the size of texts.
	textBytes int
}

func newEntries(f *File) *entries {
	return &entries{root: f.root, most: f.most, first: map[uint32]string{}, texts: map[string]string{}}
}

// header returns the header of a file, or of a hard link for a further name of a file. It
// returns nil for a file that no layer can hold.
func (e *entries) header(name string, n squashfs.Inode) (*tar.Header, error) {
	if strings.HasPrefix(path.Base(name), ".wh.") {
		return nil, nil // in a layer the file would be a whiteout
	}
	header, known := describe(name, n)
	if !known {
		return nil, nil // a socket, which no archive can hold
	}
	if target, again := e.first[n.Number]; again && n.Kind != squashfs.Dir {
		header.Typeflag, header.Linkname, header.Size = tar.TypeLink, target, 0
		return header, nil
	}
	if n.Links > 1 && n.Kind != squashfs.Dir {
		if err := e.most.Keep(linkKept + len(name)); err != nil {
			return nil, err
		}
		e.first[n.Number] = name
	}
	return header, nil
}

// describesImage reports whether a file is part of the image's description of itself.
func (e *entries) describesImage(name string, n squashfs.Inode) bool {
	return n.Size <= maxText && (name == labelsFile || strings.HasPrefix(name, environment))
}

// copyContent writes the content of a file, and keeps it if it describes the image.
func (e *entries) copyContent(name string, n squashfs.Inode, into io.Writer) error {
	var text bytes.Buffer
	if e.describesImage(name, n) {
		if e.textBytes += int(n.Size); e.textBytes > maxTexts {
			return fmt.Errorf("read %q: the files that describe the image have more than %d bytes", name, maxTexts)
		}
		into = io.MultiWriter(into, &text)
	}
	if _, err := io.Copy(into, e.root.Content(n)); err != nil {
		return fmt.Errorf("read %q: %w", name, err)
	}
	if e.describesImage(name, n) {
		e.texts[name] = text.String()
	}
	return nil
}

// describe returns an archive header for an inode, and reports whether there is one for its
// kind.
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
		// A record cannot have such a name, and no attribute of importance has one.
		if !strings.ContainsAny(x.Name, "=\x00") {
			header.PAXRecords["SCHILY.xattr."+x.Name] = string(x.Value)
		}
	}
	return header, true
}
