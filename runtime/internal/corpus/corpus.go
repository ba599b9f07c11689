// Package corpus provides layers with everything that a layer can hold, and
// describes a tree as text, so that tests can compare the results of different
// programs. Only tests use it.
package corpus

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// capability is cap_net_raw=ep, as a file has it.
const capability = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// entry is an entry of an archive.
type entry struct {
	name string
	kind byte // of package tar; a directory or regular file by its name if 0
	mode int64
	uid  int
	text string
	link string
	size int // of content that is random
	// xattrs are extended attributes.
	xattrs map[string]string
	major  int64
	minor  int64
}

// Layers returns the archives of an image, the lowest first.
func Layers() ([][]byte, error) {
	var many []entry
	for i := range 1500 {
		many = append(many, entry{name: fmt.Sprintf("many/%04d-%s", i, strings.Repeat("x", i%100)), text: fmt.Sprint(i)})
	}
	deep := strings.Repeat("d/", 60)
	layers := [][]entry{
		append([]entry{
			{name: "etc/", mode: 0o755}, {name: "etc/passwd", text: "root:x:0:0\n"}, {name: "etc/shadow", mode: 0o640, uid: 42, text: "secret"},
			{name: "bin/", mode: 0o755}, {name: "bin/su", mode: 0o4755, text: "su"}, {name: "bin/wall", mode: 0o2755, uid: 5, text: "wall"},
			{name: "bin/ping", mode: 0o755, text: "ping", xattrs: map[string]string{"security.capability": capability}},
			{name: "tmp/", mode: 0o1777}, {name: "root/", mode: 0o700}, {name: "empty/", mode: 0o500, uid: 7},
			{name: "attributes", text: "a", xattrs: map[string]string{"user.one": "1", "user.two": strings.Repeat("2", 900), "user.none": ""}},
			{name: "empty-file"}, {name: "blocks/4031", size: 4031}, {name: "blocks/4032", size: 4032}, {name: "blocks/4095", size: 4095},
			{name: "blocks/4096", size: 4096}, {name: "blocks/4097", size: 4097}, {name: "blocks/8191", size: 8191}, {name: "large", size: 5<<20 + 77},
			{name: "zeros", text: strings.Repeat("\x00", 9<<20) + "end"},
			{name: "hard/one", text: "shared", mode: 0o600, uid: 9}, {name: "hard/two", kind: tar.TypeLink, link: "hard/one"}, {name: "three", kind: tar.TypeLink, link: "hard/one"},
			{name: "links/relative", kind: tar.TypeSymlink, link: "../etc/passwd"}, {name: "links/absolute", kind: tar.TypeSymlink, link: "/etc/passwd"},
			{name: "links/nowhere", kind: tar.TypeSymlink, link: strings.Repeat("long/", 300)}, {name: "links/up", kind: tar.TypeSymlink, link: "../../../../etc"},
			{name: "lib", kind: tar.TypeSymlink, link: "usr/lib"}, {name: "usr/lib/", mode: 0o755}, {name: "lib/through-link", text: "found"},
			{name: "fifo", kind: tar.TypeFifo, mode: 0o622}, {name: "nodes/null", kind: tar.TypeChar, mode: 0o666, major: 1, minor: 3}, {name: "nodes/disk", kind: tar.TypeBlock, mode: 0o660, major: 8, minor: 300},
			{name: strings.Repeat("n", 255), text: "long name"}, {name: "caf\xe9 \"quoted\"\n", text: "odd name"}, {name: "../../escape", text: "stays inside"},
			{name: deep + "bottom", text: "deep"},
			{name: "hidden/file", text: "to hide"}, {name: "hidden/dir/file", text: "to hide"}, {name: "whole/a", text: "a"}, {name: "whole/b/c", text: "c"},
			{name: "opaque/", mode: 0o711, uid: 3}, {name: "opaque/old", text: "old"}, {name: "opaque/sub/old", text: "old"},
			{name: "dir-to-file/x", text: "x"}, {name: "file-to-dir", text: "f"}, {name: "replaced", text: "before", mode: 0o600}, {name: "replaced-later", text: "linked", uid: 6, mode: 0o640},
			{name: "attrs/", mode: 0o700, uid: 11, xattrs: map[string]string{"user.dir": "first"}}, {name: "attrs/kept", text: "kept"},
			{name: "implied/", mode: 0o750, uid: 12}, {name: "implied/sub/", mode: 0o701, uid: 13}, {name: "implied/sub/old", text: "old"},
			{name: "again/", mode: 0o750}, {name: "again/old", text: "old"}, {name: "again2/", mode: 0o750}, {name: "again2/old", text: "old"},
		}, many...),
		{
			{name: "hidden/.wh.file"}, {name: "hidden/.wh.dir"}, {name: "hidden/new", text: "new"}, {name: ".wh.whole"},
			{name: "opaque/", mode: 0o722, uid: 4}, {name: "opaque/.wh..wh..opq"}, {name: "opaque/new", text: "new"},
			{name: ".wh.dir-to-file"}, {name: "dir-to-file", text: "now a file"}, {name: ".wh.file-to-dir"}, {name: "file-to-dir/", mode: 0o755}, {name: "file-to-dir/inside", text: "i"},
			{name: "replaced", text: "after", mode: 0o644, uid: 2}, {name: "attrs/", mode: 0o711, uid: 21, xattrs: map[string]string{"user.dir": "second"}},
			{name: "implied/sub/new", text: "new"}, {name: ".wh.again"}, {name: "again/", mode: 0o711}, {name: "again/new", text: "new"}, {name: ".wh.again2"}, {name: "again2/new", text: "new"},
			{name: "many/.wh.0007-xxxxxxx"}, {name: "hard/own", text: "own"}, {name: "hard/own2", kind: tar.TypeLink, link: "hard/own"}, {name: "hard/below", kind: tar.TypeLink, link: "replaced-later", uid: 6, mode: 0o640},
			{name: ".wh.nothing-there"}, {name: "etc/.wh..wh.plnk", text: "of another driver"},
		},
		{
			{name: "hidden/file", text: "back"}, {name: ".wh.replaced-later"}, {name: "opaque/sub/third", text: "third"}, {name: "whole/b/d", text: "d"},
			{name: "links/.wh..wh..opq"}, {name: "links/only", kind: tar.TypeSymlink, link: "only"}, {name: "implied/.wh.sub"},
		},
	}
	var archives [][]byte
	for i, entries := range layers {
		archive, err := pack(entries, uint64(i))
		if err != nil {
			return nil, err
		}
		archives = append(archives, archive)
	}
	return archives, nil
}

func pack(entries []entry, seed uint64) ([]byte, error) {
	random := rand.New(rand.NewPCG(seed, 7))
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, e := range entries {
		if e.size > 0 {
			content := make([]byte, e.size)
			for k := range content {
				content[k] = byte(random.Uint32())
			}
			e.text = string(content)
		}
		stamp := e.name
		if e.kind == tar.TypeLink { // a hard link repeats the metadata of the file
			stamp = e.link
			if k := slices.IndexFunc(entries, func(o entry) bool { return o.kind != tar.TypeLink && o.name == e.link }); k >= 0 {
				e.mode, e.uid = entries[k].mode, entries[k].uid
			}
		}
		seconds := int64(crc32.ChecksumIEEE([]byte(stamp)))
		header := &tar.Header{
			Name: e.name, Typeflag: e.kind, Mode: e.mode, Uid: e.uid, Gid: e.uid * 2, Linkname: e.link, Size: int64(len(e.text)),
			ModTime: time.Unix(seconds, seconds%1e9), Devmajor: e.major, Devminor: e.minor, Format: tar.FormatPAX,
		}
		if header.Typeflag == 0 {
			header.Typeflag = tar.TypeReg
			if strings.HasSuffix(e.name, "/") {
				header.Typeflag = tar.TypeDir
			}
		}
		if header.Mode == 0 {
			header.Mode = 0o644
		}
		if len(e.xattrs) > 0 {
			header.PAXRecords = map[string]string{}
			for name, value := range e.xattrs {
				header.PAXRecords["SCHILY.xattr."+name] = value
			}
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, fmt.Errorf("pack %q: %w", e.name, err)
		}
		if _, err := w.Write([]byte(e.text)); err != nil {
			return nil, fmt.Errorf("pack %q: %w", e.name, err)
		}
	}
	err := w.Close()
	return out.Bytes(), err
}

// File describes one file.
type File struct {
	Path                string
	Mode                uint32
	UID, GID            uint32
	Links               uint32
	Size                int64
	Major, Minor        uint32
	Seconds, Nanosecond int64
	Xattrs              map[string]string
	// Content is the content of a regular file, or the target of a link.
	Content []byte
}

// String returns the file as one line. For directories it omits the values that
// depend on the file system that holds them.
func (f File) String() string {
	var attributes []string
	for _, name := range slices.Sorted(maps.Keys(f.Xattrs)) {
		attributes = append(attributes, fmt.Sprintf("%s=%x", name, f.Xattrs[name]))
	}
	line := fmt.Sprintf("%q %o %d:%d %v", f.Path, f.Mode, f.UID, f.GID, attributes)
	if f.Mode&unix.S_IFMT == unix.S_IFDIR {
		return line
	}
	return fmt.Sprintf("%s links=%d size=%d dev=%d:%d time=%d.%09d %.10x", line, f.Links, f.Size, f.Major, f.Minor, f.Seconds, f.Nanosecond, sha256.Sum256(f.Content))
}

// Describe returns the lines of all files below a directory, sorted. It omits the
// directories without, which are relative to root, and all that is below them.
func Describe(root string, without ...string) ([]string, error) {
	var lines []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		own, _ := filepath.Rel(root, path)
		if slices.Contains(without, own) {
			return fs.SkipDir
		}
		f, err := inspect(path)
		f.Path = own
		lines = append(lines, f.String())
		return err
	})
	slices.Sort(lines)
	return lines, err
}

func inspect(path string) (File, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return File{}, fmt.Errorf("inspect %s: %w", path, err)
	}
	f := File{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Links: uint32(st.Nlink), Size: st.Size,
		Seconds: st.Mtim.Sec, Nanosecond: st.Mtim.Nsec, Xattrs: map[string]string{},
	}
	names := make([]byte, 65536)
	n, err := unix.Llistxattr(path, names)
	if err != nil {
		return f, fmt.Errorf("list attributes of %s: %w", path, err)
	}
	for _, name := range strings.FieldsFunc(string(names[:n]), func(r rune) bool { return r == 0 }) {
		if strings.HasPrefix(name, "system.") || name == "security.selinux" {
			continue // set by the host
		}
		value := make([]byte, 65536)
		n, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return f, fmt.Errorf("read attribute %s of %s: %w", name, path, err)
		}
		f.Xattrs[name] = string(value[:n])
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFCHR, unix.S_IFBLK:
		f.Major, f.Minor = unix.Major(st.Rdev), unix.Minor(st.Rdev)
	case unix.S_IFLNK:
		target, err := os.Readlink(path)
		f.Content = []byte(target)
		return f, err
	case unix.S_IFREG:
		f.Content, err = os.ReadFile(path)
		return f, err
	}
	return f, nil
}

// Difference returns the first difference between two lists of lines, "" if there
// is none.
func Difference(got, want []string) string {
	missing := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return slices.Contains(got, line) })
	extra := slices.DeleteFunc(slices.Clone(got), func(line string) bool { return slices.Contains(want, line) })
	if len(missing)+len(extra) == 0 {
		return ""
	}
	return fmt.Sprintf("%d lines are missing, %d are too many:\n- %.2000s\n+ %.2000s", len(missing), len(extra), strings.Join(missing, "\n- "), strings.Join(extra, "\n+ "))
}
