package sif

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"berth.dev/berth/runtime/internal/layer"
	"berth.dev/berth/runtime/internal/squashfs"
)

// Part is a part of a file's content: its place in the image of the layer, and
// its place in the SIF file.
type Part struct {
	At int64
	squashfs.Part
}

// ErrTooLarge is the error for file systems that are too large for Lay.
var ErrTooLarge = errors.New("too large to be used in place")

// partKept is the memory for a part of a file's content in bytes.
const partKept = 32

// maxContent bounds the total size of the files in bytes. Each block of four kilobytes takes
// four bytes of memory while the layer is laid out.
const maxContent = 128 << 30

// Lay writes the image of the layer to an empty file, without the content of the
// layer's files. It calls add with the place of each part of the content, in the
// order of the image, and returns the matching configuration. The only content that
// it reads is the image's description of itself.
func (f *File) Lay(to *os.File, add func(Part) error) (ocispec.Image, error) {
	e := newEntries(f)
	var size int64
	err := layer.Lay(to, f.most, func(put func(*tar.Header) (int64, error)) error {
		return f.root.Walk(func(name string, n squashfs.Inode) error {
			header, err := e.header(name, n)
			if header == nil {
				return err
			}
			if header.Size > maxContent-size {
				return fmt.Errorf("more than %d bytes of content: %w", int64(maxContent), ErrTooLarge)
			}
			size += header.Size
			begin, err := put(header)
			if err != nil || begin == 0 { // empty, or no file
				return err
			}
			if e.describesImage(name, n) {
				if err := e.copyContent(name, n, io.Discard); err != nil {
					return err
				}
			}
			parts, err := f.root.Parts(n)
			for _, p := range parts {
				if err := f.most.Keep(partKept); err != nil {
					return err
				}
				p.Block.Offset += f.offset
				if err := add(Part{begin + p.At, p}); err != nil {
					return err
				}
			}
			return err
		})
	})
	return configuration(f.Architecture, e.texts), err
}

// Packing returns the packing of the file system's data blocks.
func (f *File) Packing() squashfs.Packing { return f.root.Packing() }
