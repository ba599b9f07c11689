package recipe

import (
	"archive/tar"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// epoch returns the time of every file: reproducible, and visibly not a real one.
func epoch() time.Time { return time.Unix(1_700_000_000, 0) }

// layerWriter writes the tar stream of one layer.
type layerWriter struct {
	tar  *tar.Writer
	dirs map[string]bool // written already, with their owners
	// named are the entries that are no trees. They win over what a tree
	// brings at the same path: no path may be in a layer twice.
	named map[string]Entry
}

// WriteLayer writes the entries in their order; parents that no entry names
// are made with mode 0755, owned by root. A tree's directory has the mode that
// another entry of the layer gives it.
func WriteLayer(w io.Writer, entries []Entry) error {
	l := layerWriter{tar: tar.NewWriter(w), dirs: map[string]bool{"": true, ".": true}, named: map[string]Entry{}}
	for _, e := range entries {
		if e.Kind != Tree {
			l.named[e.Path] = e
		}
	}
	for _, e := range entries {
		if err := l.entry(e); err != nil {
			return fmt.Errorf("add /%s: %w", e.Path, err)
		}
	}
	return l.tar.Close()
}

func (l *layerWriter) entry(e Entry) error {
	if e.Kind == Tree {
		return l.tree(e)
	}
	if err := l.parents(e.Path); err != nil {
		return err
	}
	h := &tar.Header{Name: e.Path, Mode: e.Mode, Uid: e.UID, Gid: e.GID}
	switch e.Kind {
	case Dir:
		return l.dir(e.Path, h)
	case Link:
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.Target, 0o777
		return l.header(h)
	case Text:
		h.Typeflag, h.Size = tar.TypeReg, int64(len(e.Text))
		if err := l.header(h); err != nil {
			return err
		}
		_, err := io.WriteString(l.tar, e.Text)
		return err
	case File:
		info, err := os.Stat(e.Source)
		if err != nil {
			return err
		}
		return l.file(h, e.Source, info)
	}
	return fmt.Errorf("unknown kind %d", e.Kind)
}

func (l *layerWriter) header(h *tar.Header) error {
	h.ModTime, h.Format = epoch(), tar.FormatPAX
	return l.tar.WriteHeader(h)
}

func (l *layerWriter) parents(name string) error {
	parent := path.Dir(name)
	if l.dirs[parent] {
		return nil
	}
	if err := l.parents(parent); err != nil {
		return err
	}
	h := &tar.Header{Mode: 0o755}
	if e, ok := l.named[parent]; ok && e.Kind == Dir {
		h.Mode, h.Uid, h.Gid = e.Mode, e.UID, e.GID
	}
	return l.dir(parent, h)
}

func (l *layerWriter) dir(name string, h *tar.Header) error {
	if l.dirs[name] {
		return nil
	}
	l.dirs[name] = true
	h.Typeflag, h.Name = tar.TypeDir, name+"/"
	return l.header(h)
}

func (l *layerWriter) file(h *tar.Header, source string, info fs.FileInfo) error {
	h.Typeflag, h.Size = tar.TypeReg, info.Size()
	if h.Mode < 0 {
		h.Mode = mode(info)
	}
	if err := l.header(h); err != nil {
		return err
	}
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(l.tar, f)
	return err
}

// mode returns the permissions as chmod(1) takes them, with the set-id and sticky bits.
func mode(info fs.FileInfo) int64 {
	m := int64(info.Mode().Perm())
	for _, bit := range []struct {
		in  fs.FileMode
		out int64
	}{{fs.ModeSetuid, 0o4000}, {fs.ModeSetgid, 0o2000}, {fs.ModeSticky, 0o1000}} {
		if info.Mode()&bit.in != 0 {
			m |= bit.out
		}
	}
	return m
}

func (l *layerWriter) tree(e Entry) error {
	return filepath.WalkDir(e.Source, func(source string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(e.Source, source)
		if err != nil || rel == "." {
			return err
		}
		if slices.ContainsFunc(e.Exclude, func(x string) bool { return rel == x || strings.HasPrefix(rel, x+"/") }) {
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := path.Join(e.Path, filepath.ToSlash(rel))
		if err := l.parents(name); err != nil {
			return err
		}
		h := &tar.Header{Name: name, Mode: mode(info)}
		if e, ok := l.named[name]; ok {
			if e.Kind != Dir || !d.IsDir() {
				return nil
			}
			h.Mode, h.Uid, h.Gid = e.Mode, e.UID, e.GID
		}
		switch {
		case d.IsDir():
			return l.dir(name, h)
		case info.Mode()&fs.ModeSymlink != 0:
			h.Typeflag, h.Mode = tar.TypeSymlink, 0o777
			if h.Linkname, err = os.Readlink(source); err != nil {
				return err
			}
			return l.header(h)
		case info.Mode().IsRegular():
			return l.file(h, source, info)
		}
		return fmt.Errorf("%s is neither a file, a directory nor a link", source)
	})
}
