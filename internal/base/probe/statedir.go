package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Space, in bytes, that a run's scratch directory needs: below minStateSpace a
// directory is refused, below goodStateSpace another one is preferred.
const (
	minStateSpace  = 256 << 20
	goodStateSpace = 4 << 30
)

const minStateInodes = 20000

// Candidate is a directory that could hold the scratch directories of runs:
// images, container root file systems, volumes, logs.
type Candidate struct {
	Path string
	// Type is the file system's name, such as "ext4". Kind classifies it.
	Type string
	Kind Kind
	// FreeBytes is the space that this user may still write. In memory it counts
	// against the job.
	FreeBytes uint64
	// NoExec is true where programs in volumes cannot be executed. Container
	// root file systems are not concerned: overlayfs ignores it.
	NoExec bool
	// Overlay is true where the directory can hold the upper layers of
	// overlayfs.
	Overlay bool
	// Reason is the reason why the candidate was refused; empty for the chosen
	// one.
	Reason string
}

// StateDirs returns the places to try, the best first: what the user names
// (BERTH_STATE_DIR), what Slurm or the site gives the job, then the usual
// node-local places, memory last.
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

// StateDir chooses among candidates. Earlier ones win over later ones of the
// same worth; one that can hold overlays wins over one that cannot, a disk over
// memory, enough space over little, a mount that allows programs over one that
// does not. The best candidate has an empty Path
// where all were refused. The others are returned in their order, with the
// reason of each.
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
	// The refusal of a shared directory names the better place.
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

// candidate examines one directory. A network file system is known by its
// mount and left untouched, because one whose server is away hangs every
// process that looks at it.
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

// CheckShared reports why other machines would not see what is put into a folder, which
// need not be there yet: it has to be on a file system of the network.
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

// resolve follows links, through the file system that tests can replace.
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
			return dir, nil // far enough: it is refused, and left untouched
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

// Bytes writes a size for people: "1.5 GiB".
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
