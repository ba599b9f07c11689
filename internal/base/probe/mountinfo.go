package probe

import (
	"path"
	"slices"
	"strconv"
	"strings"
)

// mountEntry is one line of /proc/self/mountinfo.
type mountEntry struct {
	ID, Parent int
	// Root is the directory of the file system that is mounted, Point where.
	Root, Point string
	// Options are the mount's options; Super are the file system's.
	Options, Super []string
	Type, Source   string
}

// has reports whether the mount, or its file system, has an option.
func (m mountEntry) has(option string) bool {
	return slices.Contains(m.Options, option) || slices.Contains(m.Super, option)
}

// parseMountinfo reads the format of proc(5). Lines that are not of that
// format are left out.
func parseMountinfo(content []byte) []mountEntry {
	var mounts []mountEntry
	for line := range strings.Lines(string(content)) {
		fields := strings.Fields(line)
		// Optional fields stand between the sixth and a lone dash.
		dash := slices.Index(fields, "-")
		if dash < 6 || len(fields) < dash+3 {
			continue
		}
		id, err := strconv.Atoi(fields[0])
		if err != nil {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			continue
		}
		mount := mountEntry{
			ID: id, Parent: parent,
			Root: unescape(fields[3]), Point: unescape(fields[4]),
			Options: strings.Split(fields[5], ","),
			Type:    fields[dash+1],
			Source:  unescape(fields[dash+2]),
		}
		if len(fields) > dash+3 {
			mount.Super = strings.Split(fields[dash+3], ",")
		}
		mounts = append(mounts, mount)
	}
	return mounts
}

// unescape undoes the octal escapes that the kernel uses for space, tab,
// newline and backslash.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountOf returns the mount that holds a path. Of several on one point the
// last one covers the others. The path is taken as it is written: following
// its links could touch a network file system that hangs.
func mountOf(mounts []mountEntry, file string) (mountEntry, bool) {
	var best mountEntry
	found := false
	file = path.Clean(file)
	for _, mount := range mounts {
		if !within(file, mount.Point) {
			continue
		}
		if !found || len(mount.Point) >= len(best.Point) {
			best, found = mount, true
		}
	}
	return best, found
}

// within reports whether a clean path is dir or below it.
func within(file, dir string) bool {
	return file == dir || dir == "/" || strings.HasPrefix(file, strings.TrimSuffix(dir, "/")+"/")
}

// rootIsRootfs reports whether the root directory is the kernel's first mount,
// which can be neither moved nor pivoted away. This is so on a diskless node
// that runs from its initramfs. Containers then need a root mount that has a
// parent (bind / over itself, move it over /, chroot) or runc's --no-pivot.
func (h *Host) rootIsRootfs() bool {
	root, ok := mountOf(h.mounts(), "/")
	return ok && (root.Type == "rootfs" || root.Parent == root.ID)
}
