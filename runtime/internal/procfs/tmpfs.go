package procfs

import "golang.org/x/sys/unix"

// TmpfsUse returns how many bytes the file system at path holds in memory. It
// returns 0 if the file system is not in memory, or if the call fails.
func TmpfsUse(path string) uint64 {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil || s.Type != unix.TMPFS_MAGIC || s.Bfree > s.Blocks {
		return 0
	}
	return (s.Blocks - s.Bfree) * uint64(s.Bsize)
}
