package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Free space for a run's scratch directory, in bytes. A directory with less than
// minStateSpace is refused. One with at least goodStateSpace is preferred.
const (
	minStateSpace  = 256 << 20
	goodStateSpace = 4 << 30
)

// minStateInodes is the number of free inodes that a run needs.
const minStateInodes = 20000

// Candidate is a directory that could hold the scratch directories of runs:
// images, container root file systems, volumes, logs.
type Candidate struct {
	Path string
	// Type is the file system's name, such as "ext4". Kind classifies it.
	Type string
	Kind Kind
	// FreeBytes is the space that this user may still write. If Kind is KindMemory, it
	// counts against the memory of the job.
	FreeBytes uint64
	// NoExec is true if programs in volumes cannot be executed. It does not affect
	// container root file systems: overlayfs ignores it.
	NoExec bool
	// Overlay is true if the directory can hold the upper layers of overlayfs.
	Overlay bool
	// Reason is the reason why the candidate was refused; empty for the chosen
	// one.
	Reason string
}

// StateDirs returns the directories to try, in the order of preference: the user's
// choice (BERTH_STATE_DIR), the directories of the job from Slurm or the site, the usual
// node-local directories, and last /dev/shm, which is in memory.
func (h *Host) StateDirs() []string {
	var dirs []string
	seen := map[string]bool{}
	add := func(dir string) {
		if dir = strings.TrimSpace(dir); dir != "" && !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	for _, name := range []string{"BERTH_STATE_DIR", "SLURM_TMPDIR", "SLURM_JOBTMP", "LOCAL_SCRATCH", "LOCALSCRATCH", "TMPDIR"} {
		add(h.getenv(name))
	}
	for _, dir := range []string{"/local/scratch", "/localscratch", "/var/tmp", "/tmp", "/dev/shm"} {
		add(dir)
	}
	return dirs
}

// StateDir returns the best of the candidates. It prefers, in this order, a directory that
// can hold overlays, a disk to memory, enough free space, and a mount that permits
// programs. Among equal candidates, it takes the first. If all candidates are refused,
// best has an empty Path. rejected holds the other candidates in their order, each with
// its Reason.
func (h *Host) StateDir(candidates []string) (best Candidate, rejected []Candidate) {
	chosen, worth := -1, -1
	all := make([]Candidate, 0, len(candidates))
	for i, dir := range candidates {
		candidate := h.candidate(dir)
		all = append(all, candidate)
		if candidate.Reason != "" {
			continue
		}
		if w := candidate.worth(); w > worth {
			chosen, worth = i, w
		}
	}
	for i, candidate := range all {
		switch {
		case i == chosen:
			best = candidate
		case candidate.Reason == "":
			candidate.Reason = "usable, but " + candidates[chosen] + " is better"
			rejected = append(rejected, candidate)
		default:
			rejected = append(rejected, candidate)
		}
	}
	// The message about a refused network file system names the chosen directory.
	for i := range rejected {
		if rejected[i].Kind == KindNetwork && best.Path != "" {
			rejected[i].Reason += "; use " + best.Path
		}
	}
	return best, rejected
}

func (c Candidate) worth() int {
	worth := 0
	if c.Overlay {
		worth += 8
	}
	if c.Kind != KindMemory {
		worth += 4
	}
	if c.FreeBytes >= goodStateSpace {
		worth += 2
	}
	if !c.NoExec {
		worth++
	}
	return worth
}

// candidate examines one directory, and sets Reason if it is refused. It detects a network
// file system by its mount entry and does not access it, because an access hangs if the
// server is down.
func (h *Host) candidate(dir string) Candidate {
	c := Candidate{Path: dir}
	if !filepath.IsAbs(dir) {
		c.Reason = "not an absolute path"
		return c
	}
	c.Path = filepath.Clean(dir)
	mount, _ := mountOf(h.mounts(), c.Path)
	c.Type, c.Kind = mount.Type, kindOf(mount.Type, 0)
	if c.refuseShared(); c.Reason != "" {
		return c
	}
	if real, err := h.resolve(c.Path); err == nil && real != c.Path {
		mount, _ = mountOf(h.mounts(), real)
		c.Type, c.Kind = mount.Type, kindOf(mount.Type, 0)
		if c.refuseShared(); c.Reason != "" {
			return c
		}
	}
	info, err := fs.Stat(h.root, strings.TrimPrefix(c.Path, "/"))
	if err != nil {
		c.Reason = fmt.Sprintf("cannot be looked at: %v", unwrapPath(err))
		return c
	}
	if !info.IsDir() {
		c.Reason = "not a directory"
		return c
	}
	if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		c.Reason = fmt.Sprintf("anyone may rename and remove files there (mode %04o without the sticky bit)", info.Mode().Perm())
		return c
	}
	if err := h.kernel.Access(c.Path, unix.W_OK|unix.X_OK); err != nil {
		c.Reason = fmt.Sprintf("not writable for this user: %v", err)
		return c
	}
	stat, err := h.kernel.Statfs(c.Path)
	if err != nil {
		c.Reason = fmt.Sprintf("file system cannot be looked at: %v", err)
		return c
	}
	c.FreeBytes, c.NoExec = stat.FreeBytes, stat.NoExec
	if c.Kind == KindUnknown || c.Kind == "" {
		c.Kind = kindOf("", stat.Magic)
		if c.Type == "" {
			c.Type = fmt.Sprintf("%#x", stat.Magic)
		}
	}
	c.refuseShared()
	switch {
	case c.Reason != "":
	case stat.ReadOnly:
		c.Reason = "the file system is read-only"
	case stat.FreeBytes < minStateSpace:
		c.Reason = fmt.Sprintf("only %s free, and a run needs %s", Bytes(stat.FreeBytes), Bytes(minStateSpace))
	case stat.TotalInodes > 0 && stat.FreeInodes < minStateInodes:
		c.Reason = fmt.Sprintf("only %d inodes free, and a run needs %d", stat.FreeInodes, minStateInodes)
	}
	// vfat and exfat have a disk's kind, but neither owners nor xattrs.
	c.Overlay = c.Kind == KindDisk && c.Type != "vfat" && c.Type != "exfat"
	if c.Kind == KindMemory && c.Type != "ramfs" {
		// Whiteouts need user.* attributes, which tmpfs has since Linux 6.6.
		major, minor, ok := kernelVersion(h.describe().Kernel)
		c.Overlay = ok && (major > 6 || major == 6 && minor >= 6)
	}
	return c
}

// CheckShared returns an error unless a folder is on a network file system, so that other
// machines see its content. The folder need not exist.
func (h *Host) CheckShared(folder string) error {
	resolved, err := h.resolve(filepath.Clean(folder))
	if err != nil {
		return fmt.Errorf("look at %s: %w", folder, err)
	}
	mount, _ := mountOf(h.mounts(), resolved)
	if kindOf(mount.Type, 0) != KindNetwork {
		return fmt.Errorf("%s is on %s, which other machines do not see", folder, mount.Type)
	}
	return nil
}

func (c *Candidate) refuseShared() {
	switch c.Kind {
	case KindNetwork:
		c.Reason = fmt.Sprintf("%s is a network file system: subordinate uids, extended attributes and removal at the end of the job do not work there", c.Type)
	case KindFUSE:
		c.Reason = fmt.Sprintf("%s is served by a process of one user: subordinate uids and overlayfs do not work there", c.Type)
	}
}

// resolve follows symbolic links. It reads them through h.root, which tests can replace. It
// stops at a network file system. It returns ELOOP after 40 links.
func (h *Host) resolve(dir string) (string, error) {
	for range 40 { // as many as the kernel follows
		next := dir
		for _, step := range prefixes(dir) {
			target, err := fs.ReadLink(h.root, strings.TrimPrefix(step, "/"))
			if err != nil {
				continue
			}
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(step), target)
			}
			next = filepath.Join(target, strings.TrimPrefix(dir, step))
			break
		}
		if next == dir {
			return dir, nil
		}
		dir = next
		if mount, ok := mountOf(h.mounts(), dir); ok && kindOf(mount.Type, 0) == KindNetwork {
			return dir, nil // do not access a network file system
		}
	}
	return "", unix.ELOOP
}

// prefixes returns "/a", "/a/b", "/a/b/c" of "/a/b/c".
func prefixes(dir string) []string {
	var steps []string
	for i := 1; i < len(dir); i++ {
		if dir[i] == '/' {
			steps = append(steps, dir[:i])
		}
	}
	return append(steps, dir)
}

func unwrapPath(err error) error {
	if pathError, ok := errors.AsType[*fs.PathError](err); ok {
		return pathError.Err
	}
	return err
}

// Bytes formats a size in bytes with a binary unit, such as "1.5 GiB".
func Bytes(n uint64) string {
	const units = "KMGTPE"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}
