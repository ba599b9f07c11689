package layercache

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"slices"
	"syscall"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// errNoSpace is the error for a layer that would not fit even if all other layers were
// removed.
var errNoSpace = errors.New("no room: its limit, or four fifths of the quota or file system that it is on, would be exceeded")

// mostKept bounds the space to keep free on a file system, in bytes, because a fifth of a
// site's shared file system may be more than it ever has free.
const mostKept = 1 << 40

// locals holds the statfs(2) numbers of local file systems: ext2 to ext4, XFS, Btrfs,
// ZFS, F2FS, bcachefs, tmpfs, ramfs, overlayfs, JFS, ReiserFS, NILFS, UFS, FAT, exFAT.
// All others may be on servers. There are too many network file systems to list, and the
// numbers of some are not in the kernel's sources.
var locals = []int64{
	0xef53, 0x58465342, 0x9123683e, 0x2fc12fc1, 0xf2f52010, 0xca451a4e, 0x01021994, 0x858458f6, 0x794c7630, 0x3153464a,
	0x52654973, 0x3434, 0x00011954, 0x4d44, 0x2011bab0,
}

// spaceIn returns the number of bytes that may still be written to a folder before
// four fifths of a quota are used. Servers report quotas as the size of the file
// system, as the user sees it, or not at all. A kernel cannot query quotas over
// NFS, and Lustre, GPFS and others each have their own interface. A local disk
// does not report quotas as its size, and is written to until it is full.
func spaceIn(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look for room in %s: %w", dir, err)
	}
	return spaceOf(&st), nil
}

func spaceOf(st *unix.Statfs_t) int64 {
	if slices.Contains(locals, st.Type) {
		return math.MaxInt64
	}
	block := st.Frsize
	if block == 0 {
		block = st.Bsize
	}
	free := int64(st.Bavail) * block
	total := int64(st.Blocks-st.Bfree)*block + free // as df computes it
	return free - min(total/5, mostKept)
}

// NoSpace reports whether an error means a lack of space.
func NoSpace(err error) bool {
	return errors.Is(err, errNoSpace) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// FreeSpace frees size bytes on the file system. It removes layers that no job uses
// and that belong to no named image. If that would not be enough, it removes none of them,
// and NoSpace reports true for its error.
func (c *Cache) FreeSpace(size int64) error { return c.freeSpace(size, false) }

// freeSpace frees space for size bytes, as FreeSpace does. With whatThereIs it removes all
// layers that it may, even if that is not enough, and succeeds.
func (c *Cache) freeSpace(size int64, whatThereIs bool) error {
	files, named, err := c.byAge()
	if err != nil {
		return err
	}
	space, err := c.space()
	if err != nil {
		return err
	}
	files = slices.DeleteFunc(files, func(info fs.FileInfo) bool { return inUse(info) || named[digestOf(info.Name())] })
	return c.free(size-space, files, whatThereIs)
}

// free removes partial blobs, which no container uses, and then layers in their order,
// until it has freed want bytes. If all of them would not be enough, it removes no layer
// and returns errNoSpace, or, with whatThereIs, removes all and returns nil.
func (c *Cache) free(want int64, layers []fs.FileInfo, whatThereIs bool) error {
	if want <= 0 {
		return nil
	}
	_, begun, err := c.beginnings()
	if err != nil {
		return err
	}
	if _, more := enough(layers, want-begun); begun+more < want && !whatThereIs {
		return errNoSpace
	}
	freed, err := c.dropBeginnings(want)
	if err != nil {
		return err
	}
	gone, more := enough(layers, want-freed)
	if freed+more < want && !whatThereIs {
		return errNoSpace
	}
	return c.remove(gone)
}

// enough returns the first files, as many as have want bytes together, or all files. It
// also returns their total size in bytes.
func enough(files []fs.FileInfo, want int64) (first []fs.FileInfo, size int64) {
	for i, info := range files {
		if size >= want {
			return files[:i], size
		}
		size += info.Size()
	}
	return files, size
}

// inUse reports whether a job has a link to a layer. Removing such a layer would free
// nothing.
func inUse(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return !ok || st.Nlink > 1
}

// byAge returns the layers in the order of their removal, and the layers of named images.
// The least recently used layer is first, and layers of named images are last. The error
// also lists the names that could not be read.
func (c *Cache) byAge() (files []fs.FileInfo, named map[digest.Digest]bool, err error) {
	named, err = c.named()
	files, _, err2 := c.files()
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		if one, other := named[digestOf(a.Name())], named[digestOf(b.Name())]; one != other {
			if other {
				return -1
			}
			return 1
		}
		return a.ModTime().Compare(b.ModTime())
	})
	return files, named, errors.Join(err, err2)
}
