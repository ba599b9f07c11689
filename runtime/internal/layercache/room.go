package layercache

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// ErrNoRoom says that a layer would not fit, whatever else went.
var ErrNoRoom = errors.New("no room: its limit, or four fifths of the quota or file system that it is on, would be passed")

// mostKept is how much of a file system stays free at most, in bytes: a fifth of
// what a whole site shares may be more than it ever has free.
const mostKept = 1 << 40

// networks are file systems of servers, by the numbers that statfs(2) has for them:
// NFS, Lustre, GPFS, BeeGFS, Ceph, CIFS and SMB 2, AFS (two), PanFS, OrangeFS.
var networks = []int64{0x6969, 0x0bd00bd0, 0x47504653, 0x19830326, 0x00c36400, 0xff534d42, 0xfe534d42, 0x5346414f, 0x6b414653, 0xaad7aaea, 0x20030528}

// roomIn returns how many bytes more may be written to a folder before four fifths of
// a quota are taken. Servers tell quotas in the size of the file system, as the user
// sees it, or not at all: a kernel cannot ask for quotas of NFS, and Lustre, GPFS
// and others each have a way of their own. A local disk does not tell them so,
// and is written to until it is full.
func roomIn(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look for room in %s: %w", dir, err)
	}
	return roomOf(&st), nil
}

func roomOf(st *unix.Statfs_t) int64 {
	if !slices.Contains(networks, st.Type) {
		return math.MaxInt64
	}
	block := st.Frsize
	if block == 0 {
		block = st.Bsize
	}
	free := int64(st.Bavail) * block
	total := int64(st.Blocks-st.Bfree)*block + free // as df has it
	return free - min(total/5, mostKept)
}

// NoSpace tells of an error whether it is for want of room.
func NoSpace(err error) bool {
	return errors.Is(err, ErrNoRoom) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// MakeRoom makes room for so many bytes on the file system, of layers that belong
// to no image with a name and that no job uses. It removes none in vain.
func (c *Cache) MakeRoom(size int64) error {
	files, named, err := c.byAge()
	if err != nil {
		return err
	}
	room, err := c.room()
	if err != nil {
		return err
	}
	var gone []fs.FileInfo
	for _, info := range files {
		if room >= size {
			break
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Nlink == 1 && !named[digestOf(info.Name())] {
			gone = append(gone, info)
			room += info.Size()
		}
	}
	if room < size {
		return ErrNoRoom
	}
	for _, info := range gone {
		if err := os.Remove(filepath.Join(c.layers(), info.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// byAge are the layers in the order in which they have to go, and those of images
// with names, which go last. What cannot be read of these is in the error.
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
