package probe

import "strings"

// filesystem is the result of statfs(2) for a path.
type filesystem struct {
	Magic                    uint32
	FreeBytes, TotalBytes    uint64
	FreeInodes, TotalInodes  uint64 // TotalInodes is 0 where there is no bound
	ReadOnly, NoExec, NoSUID bool
}

// Kind classifies file systems by their use to berth.
type Kind string

const (
	KindDisk    Kind = "disk"
	KindMemory  Kind = "memory"  // tmpfs: what it holds counts as the job's memory
	KindNetwork Kind = "network" // shared between nodes
	KindFUSE    Kind = "fuse"    // served by a process: no subordinate uids, no overlay
	KindOverlay Kind = "overlay" // cannot be the upper layer of another overlay
	KindUnknown Kind = "unknown"
)

// kindOf classifies a file system by its name in mountinfo, and by its magic
// number where the name says nothing (a bind of something hidden).
func kindOf(name string, magic uint32) Kind {
	base, _, _ := strings.Cut(name, ".")
	switch base {
	case "ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2", "ufs", "vfat", "exfat":
		return KindDisk
	case "tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs":
		return KindMemory
	case "nfs", "nfs4", "lustre", "gpfs", "mmfs", "beegfs", "fhgfs", "ceph", "cifs", "smb3", "smbfs", "afs", "9p",
		"virtiofs", "panfs", "wekafs", "dvs", "pvfs2", "orangefs", "ocfs2", "gfs2", "glusterfs", "daos", "quobyte", "vastnfs":
		return KindNetwork
	case "overlay", "aufs", "unionfs":
		return KindOverlay
	case "fuse", "fuseblk", "fusectl":
		return KindFUSE
	}
	switch magic {
	case 0xef53, 0x58465342, 0x9123683e, 0x2fc12fc1, 0xf2f52010, 0xca451a4e:
		return KindDisk // ext, xfs, btrfs, zfs, f2fs, bcachefs
	case 0x01021994, 0x858458f6:
		return KindMemory // tmpfs, ramfs
	case 0x6969, 0x0bd00bd0, 0x47504653, 0x19830326, 0x00c36400, 0xff534d42, 0xfe534d42,
		0x5346414f, 0x6b414653, 0x01021997, 0xaad7aaea, 0x20030528, 0x7461636f, 0x01161970:
		return KindNetwork // nfs, lustre, gpfs, beegfs, ceph, cifs, smb2, afs (2), 9p, panfs, orangefs, ocfs2, gfs2
	case 0x794c7630:
		return KindOverlay
	case 0x65735546:
		return KindFUSE
	}
	return KindUnknown
}
