package probe

import (
	"io/fs"
	"math"
	"net/netip"
	"strings"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// machine is a host made of text: files by path, with "-> target" for links.
type machine struct {
	files map[string]string
	env   map[string]string
	uid   int
	// filesystems maps mount points to file systems; the longest prefix of a path
	// counts.
	filesystems map[string]filesystem
	// writable lists the paths that the user may write to.
	writable   []string
	affinity   int
	limits     map[int]uint64
	privileged map[string]string
	source     string
}

func (m machine) host() *Host {
	tree := fstest.MapFS{}
	for name, content := range m.files {
		file := &fstest.MapFile{Data: []byte(content), Mode: 0o644}
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			file = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
		}
		if content == "dir" {
			file = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
		}
		if content == "tmpdir" {
			file = &fstest.MapFile{Mode: fs.ModeDir | fs.ModeSticky | 0o777}
		}
		if content == "opendir" {
			file = &fstest.MapFile{Mode: fs.ModeDir | 0o777}
		}
		tree[strings.TrimPrefix(name, "/")] = file
	}
	uid := m.uid
	if uid == 0 {
		uid = 1000
	}
	return newHost(tree, func(name string) string { return m.env[name] }, uid, m)
}

func (m machine) Statfs(path string) (filesystem, error) {
	var best string
	for point := range m.filesystems {
		if within(path, point) && len(point) > len(best) {
			best = point
		}
	}
	if best == "" {
		return filesystem{Magic: 0xef53, FreeBytes: 100 << 30}, nil
	}
	return m.filesystems[best], nil
}

func (m machine) Access(path string, _ uint32) error {
	for _, allowed := range m.writable {
		if path == allowed {
			return nil
		}
	}
	return unix.EACCES
}

func (m machine) Affinity() (int, error) { return max(1, m.affinity), nil }

func (m machine) Limit(resource int) (soft, hard uint64, err error) {
	if n, ok := m.limits[resource]; ok {
		return n, n, nil
	}
	return math.MaxUint64, math.MaxUint64, nil
}

func (m machine) PrivilegedFile(path string) string { return m.privileged[path] }

func (m machine) SourceTowards(netip.Addr) netip.Addr {
	source, _ := netip.ParseAddr(m.source)
	return source
}
