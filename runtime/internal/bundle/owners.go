package bundle

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// A shared file system accounts for space by the owner of a file. Files written by
// the root of a container belong to the user, but files written by its other users
// belong to subordinate ids, and no quota covers those. A file server cannot tell such
// files from others, so this package refuses to write them: a container that starts as
// another user gets these mounts read-only, and one that starts as root stays root.

// Notice is an event for a pod's owner. Package node in berth-kube reads it.
type Notice struct {
	Warning bool
	Reason  string
	Message string
}

// Reasons of notices.
const (
	reasonReadOnly = "ForeignOwnerRefused"
	reasonPinned   = "UserPinned"
	reasonForeign  = "ForeignOwner"
)

// ownCapabilities lists the capabilities that create files with other owners: to
// become another user or group, and to give files away.
var ownCapabilities = []string{"CAP_SETUID", "CAP_SETGID", "CAP_CHOWN"}

// guardOwners refuses writes of foreign users on shared file systems, and reports
// them on local ones.
func (n Node) guardOwners(spec *specs.Spec, c *Container) {
	if n.OneUID || !n.GuardOwners || spec.Process == nil {
		return
	}
	user := spec.Process.User
	foreign := user.UID != 0 || user.GID != 0
	var shared, local []string
	for i, m := range spec.Mounts {
		if m.Type != "bind" || slices.Contains(m.Options, "ro") {
			continue
		}
		switch kind := n.mounts.sharedKind(m.Source); {
		case kind != "":
			shared = append(shared, fmt.Sprintf("%s (%s)", m.Destination, kind))
			if foreign {
				spec.Mounts[i].Options = append(m.Options, "rro")
			}
		case isHostPath(m.Source):
			local = append(local, m.Destination)
		}
	}
	slices.Sort(shared)
	slices.Sort(local)
	switch who := fmt.Sprintf("%d:%d", user.UID, user.GID); {
	case len(shared) > 0 && foreign:
		c.Notices = append(c.Notices, Notice{Warning: true, Reason: reasonReadOnly, Message: fmt.Sprintf(
			"read-only: %s, because machines share it and the container runs as %s, whose files would belong to a subordinate id and escape quotas; run it as root, which is you, or allow it with --foreign-owners",
			strings.Join(shared, ", "), who)})
	case len(shared) > 0:
		c.Pinned = true
		pin(spec.Process)
		c.Notices = append(c.Notices, Notice{Reason: reasonPinned, Message: fmt.Sprintf(
			"the container stays root and gives no files away, because machines share %s: files of its other users would belong to subordinate ids and escape quotas; if it has to change its user, mount that readOnly, or allow it with --foreign-owners",
			strings.Join(shared, ", "))})
	case len(local) > 0 && foreign:
		c.Notices = append(c.Notices, Notice{Reason: reasonForeign, Message: fmt.Sprintf(
			"what the container writes as %s to %s belongs to a subordinate id on the host; a pod that runs as root can remove it",
			who, strings.Join(local, ", "))})
	}
}

// pin keeps a root process and its children from changing their user. Without these
// capabilities no system call and no program with the set-user-id bit changes it.
// In a new user namespace the process can map only itself.
func pin(p *specs.Process) {
	p.NoNewPrivileges = true
	if c := p.Capabilities; c != nil {
		for _, set := range []*[]string{&c.Bounding, &c.Effective, &c.Inheritable, &c.Permitted, &c.Ambient} {
			*set = slices.DeleteFunc(*set, func(name string) bool { return slices.Contains(ownCapabilities, name) })
		}
	}
}

// isHostPath reports whether a folder belongs to the user. Others are devices, or were made
// for the pod by the kubelet or containerd.
func isHostPath(source string) bool {
	return !strings.HasPrefix(source, kubeletDir+"/") && !strings.Contains(source, "/io.containerd.") && !strings.HasPrefix(source, "/dev/")
}

// mount is a mounted file system. kind is its type, and device its number, such as 8:1.
type mount struct{ path, kind, device string }

// kubeletDir is the mount point of the run's directory on disk.
const kubeletDir = "/var/lib/kubelet"

// mounts lists the mounts of this mount namespace in mount order.
type mounts []mount

// readMounts reads a file such as /proc/self/mountinfo.
func readMounts(path string) (mounts, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	var all mounts
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		where, what := strings.Fields(before), strings.Fields(after)
		if len(where) > 4 && len(what) > 0 {
			all = append(all, mount{unescape.Replace(where[4]), what[0], where[2]})
		}
	}
	return all, nil
}

// localKinds lists the file systems of a single machine. Any other kind counts as
// shared, because no list has all shared ones.
var localKinds = []string{
	"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "jfs", "reiserfs", "nilfs2", "vfat", "exfat",
	"tmpfs", "ramfs", "rootfs", "devtmpfs", "hugetlbfs", "overlay", "squashfs", "erofs", "iso9660", "udf",
	"proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2", "autofs", "securityfs", "debugfs", "tracefs", "bpf",
	"pstore", "configfs", "efivarfs", "fusectl", "binfmt_misc", "nsfs", "rpc_pipefs",
}

// sharedKind returns the type of a shared file system that holds path or is mounted below
// it; "" if there is none.
func (all mounts) sharedKind(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	var holder mount
	below, own := "", all.device(kubeletDir)
	for _, m := range all {
		switch {
		case contains(m.path, path) && len(m.path) >= len(holder.path):
			holder = m // the last mount at a place covers the others
		case contains(path, m.path) && m.device != own && isShared(m.kind):
			below = m.kind
		}
	}
	if holder.device != own && isShared(holder.kind) {
		return holder.kind
	}
	return below
}

// device returns the device of the mount at path. Volumes of pods are on the device
// of the run's own directory, which never counts as shared.
func (all mounts) device(path string) (device string) {
	for _, m := range all {
		if m.path == path {
			device = m.device
		}
	}
	return device
}

func isShared(kind string) bool { return kind != "" && !slices.Contains(localKinds, kind) }

func contains(folder, path string) bool {
	return folder == "/" || path == folder || strings.HasPrefix(path, folder+"/")
}
