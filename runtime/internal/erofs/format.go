// Package erofs writes and reads the EROFS images that hold the layers of container
// images: one file per layer, which Linux can mount.
//
// It supports only the part of the format that layers need: no compression, one
// device, extended inodes, and data in whole blocks, with the last part behind the
// inode. The writer accepts a tree in any order and needs no second pass. The
// reader trusts no byte. Package layer interprets the content of a layer, such as
// whiteouts, and package tree merges layers.
//
// The format: https://erofs.docs.kernel.org/en/latest/core_ondisk.html
package erofs

import (
	"encoding/binary"
	"errors"
)

const (
	magic       = 0xe0f5e1e2
	superOffset = 1024
	superSize   = 128
	blockBits   = 12
	// BlockSize is the unit of data, and the smallest page size of any machine.
	BlockSize = 1 << blockBits
	inodeSize = 64
	// slotSize is the unit of inode numbers: an inode starts at number*slotSize.
	slotSize = 32
	// rootOffset is the offset of the root's inode. It must be near the start,
	// because the superblock has only 16 bits for its number.
	rootOffset = superOffset + superSize

	direntSize      = 12
	xattrHeaderSize = 12
	xattrEntrySize  = 4

	// maxNameLength is the kernel's limit.
	maxNameLength = 255
	// maxXattrs bounds the extended attributes of an inode, in bytes. They share a
	// block with the inode, and the root's block also holds the superblock.
	maxXattrs = BlockSize - rootOffset - inodeSize
	// maxLinkLength is the kernel's limit of 4096 bytes without the terminating zero.
	maxLinkLength = 4095
	// maxDirectory bounds the bytes of a directory, and maxEntries its entries. A reader
	// needs about 100 bytes of memory for each entry. The files of a layer have the same
	// limit, see package budget. MultiplyLimits raises both.
	maxDirectory = 256 << 20
	maxEntries   = 4 << 20

	layoutPlain  = 0
	layoutInline = 2
)

// Volume names that record a property of a layer. The reader of a layer without
// readable extended attributes need not look for any.
const (
	volumePlain  = "berth 1"
	volumeXattrs = "berth 1 xattr"
)

// The file types in the mode of an inode.
const (
	TypeMask    = 0o170000
	TypeFIFO    = 0o010000
	TypeChar    = 0o020000
	TypeDir     = 0o040000
	TypeBlock   = 0o060000
	TypeRegular = 0o100000
	TypeSymlink = 0o120000
	TypeSocket  = 0o140000
)

// ErrTooLarge reports a directory beyond the limits of the reader.
var ErrTooLarge = errors.New("the directory is too large")

// ErrCorrupt wraps every error caused by a malformed image.
var ErrCorrupt = errors.New("image is corrupt")

// Xattr is an extended attribute. Its name includes the prefix, such as "user.".
type Xattr struct {
	Name  string
	Value []byte
}

// prefixes lists the prefixes of extended attributes that the format knows, by
// number.
var prefixes = []struct {
	index uint8
	name  string
}{
	{1, "user."},
	{4, "trusted."},
	{6, "security."},
}

// direntType returns the type in a directory entry for the mode of an inode.
func direntType(mode uint16) uint8 {
	switch mode & TypeMask {
	case TypeRegular:
		return 1
	case TypeDir:
		return 2
	case TypeChar:
		return 3
	case TypeBlock:
		return 4
	case TypeFIFO:
		return 5
	case TypeSocket:
		return 6
	case TypeSymlink:
		return 7
	}
	return 0
}

// modeType inverts direntType. It returns 0 for an unknown type.
func modeType(dirent uint8) uint16 {
	types := [...]uint16{0, TypeRegular, TypeDir, TypeChar, TypeBlock, TypeFIFO, TypeSocket, TypeSymlink}
	if int(dirent) < len(types) {
		return types[dirent]
	}
	return 0
}

// DeviceNumber returns the kernel's encoding of a device's major and minor number.
func DeviceNumber(major, minor uint32) uint32 {
	return minor&0xff | major<<8 | minor&^0xff<<12
}

// DeviceParts returns the major and minor number of a DeviceNumber.
func DeviceParts(number uint32) (major, minor int64) {
	return int64(number >> 8 & 0xfff), int64(number&0xff | number>>12&0xfff00)
}

var order = binary.LittleEndian
