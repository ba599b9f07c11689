// Package sif makes a container image of a file in the Singularity Image Format,
// as Apptainer and Singularity build them: a layer of its squashfs image, and a
// configuration with its environment and its runscript. It runs no program of the file.
//
// The format: https://github.com/apptainer/sif/blob/main/pkg/sif/sif.go
package sif

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"berth.dev/berth/runtime/internal/budget"
	"berth.dev/berth/runtime/internal/squashfs"
)

const (
	magic = "SIF_MAGIC\x00"
	// The header: a line for the shell, the magic, a version, a processor, an ID,
	// two times, and where the descriptors are.
	magicOffset = 32
	archOffset  = 45
	tableOffset = 80
	headerSize  = 128
	// The size of a descriptor, and the offset of a partition's details in it.
	descriptorSize  = 585
	partitionOffset = 201
	// maxDescriptors bounds the descriptors of a file. No tool makes as many.
	maxDescriptors = 4096

	dataPartition = 0x4004
	dataOCIRoot   = 0x400a
	fsSquash      = 1
	fsEncrypted   = 5
	partPrimary   = 2
)

var order = binary.LittleEndian

// architecture returns Go's name of a processor, or "" for an unknown one.
func architecture(code []byte) string {
	return map[string]string{
		"01": "386", "02": "amd64", "03": "arm", "04": "arm64", "05": "ppc64", "06": "ppc64le",
		"07": "mips", "08": "mipsle", "09": "mips64", "10": "mips64le", "11": "s390x", "12": "riscv64",
	}[string(code[:2])]
}

// Is reports whether a file begins like a SIF file; 64 bytes are enough.
func Is(start []byte) bool {
	return len(start) >= magicOffset+len(magic) && bytes.Equal(start[magicOffset:][:len(magic)], []byte(magic))
}

// File is an open SIF file.
type File struct {
	most *budget.Layer
	// Architecture is Go's name of the processor; empty if the file does not state it.
	Architecture string
	root         *squashfs.Image
	// offset is the start of the file system.
	offset int64
}

// Open reads the descriptors of a file of size bytes, and opens the file system of its
// primary partition, within the limits of b.
func Open(from io.ReaderAt, size int64, b budget.Budget) (*File, error) {
	header := make([]byte, headerSize)
	if _, err := from.ReadAt(header, 0); err != nil || !Is(header) {
		return nil, errors.Join(errors.New("it is not a SIF file"), err)
	}
	total, at := int64(order.Uint64(header[tableOffset+8:])), int64(order.Uint64(header[tableOffset+16:]))
	if total < 0 || total > maxDescriptors || at < headerSize || at > size-total*descriptorSize {
		return nil, fmt.Errorf("it should hold %d objects, listed at %d of %d bytes: it is not complete, or damaged", total, at, size)
	}
	f := &File{most: b.Layer(size), Architecture: architecture(header[archOffset:])}
	for k := range total {
		d := make([]byte, descriptorSize)
		if _, err := from.ReadAt(d, at+k*descriptorSize); err != nil {
			return nil, fmt.Errorf("read object %d: %w", k, err)
		}
		if d[4] == 0 { // not used
			continue
		}
		if order.Uint32(d) == dataOCIRoot {
			return nil, errors.New("it is an OCI-SIF, which is not supported: build the image without --oci, or give it as an archive")
		}
		if order.Uint32(d) == dataPartition && order.Uint32(d[partitionOffset+4:]) == partPrimary {
			return f, f.openPartition(from, size, d)
		}
	}
	return nil, errors.New("it has no file system to run in")
}

// openPartition opens the file system of a descriptor.
func (f *File) openPartition(from io.ReaderAt, size int64, b []byte) (err error) {
	switch system := order.Uint32(b[partitionOffset:]); system {
	case fsSquash:
	case fsEncrypted:
		return errors.New("it is encrypted; build one without --encrypt")
	default:
		return fmt.Errorf("its file system is of kind %d, not squashfs; 'apptainer build new.sif old.sif' makes one", system)
	}
	if own := architecture(b[partitionOffset+8:]); own != "" {
		f.Architecture = own
	}
	offset, length := int64(order.Uint64(b[17:])), int64(order.Uint64(b[25:]))
	if offset < 0 || length < 0 || offset > size || length > size-offset {
		return fmt.Errorf("its file system is said to be %d bytes at %d of %d: it is not complete, or damaged", length, offset, size)
	}
	f.offset = offset
	if f.root, err = squashfs.Open(io.NewSectionReader(from, offset, length), length, f.most.Budget); err != nil {
		return fmt.Errorf("read its file system: %w", err)
	}
	return nil
}
