// Package squashfs reads squashfs images, version 4.0
// (https://dr-emann.github.io/squashfs/), and trusts none of their bytes. It walks
// through a whole image once and returns the places of content. It does not look up
// single files.
//
// Read image.go first, then walk.go and inode.go. meta.go, table.go, part.go and
// xattr.go read the structures of the format; xz.go and lz4.go unpack blocks.
package squashfs
