package corpus

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// SIF writes a SIF file with the content of an archive. It runs mksquashfs with the
// given arguments.
func SIF(path string, archive []byte, arguments ...string) error {
	squashfs := path + ".squashfs"
	defer os.Remove(squashfs)
	command := exec.Command("mksquashfs", append([]string{"-", squashfs, "-tar", "-quiet", "-no-progress"}, arguments...)...)
	command.Stdin = bytes.NewReader(archive)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("mksquashfs: %w: %s", err, out)
	}
	content, err := os.ReadFile(squashfs)
	if err != nil {
		return err
	}
	return os.WriteFile(path, around(content), 0o600)
}

// around returns a SIF file with one object.
func around(content []byte) []byte {
	const header, descriptor = 128, 585
	all := make([]byte, header+descriptor, header+descriptor+len(content))
	copy(all[32:], "SIF_MAGIC\x0001\x0002\x00")
	put := func(at int, value uint64) { binary.LittleEndian.PutUint64(all[at:], value) }
	put(88, 1)
	put(96, header)
	put(header+17, header+descriptor)
	put(header+25, uint64(len(content)))
	put(header+201, 1|2<<32) // squashfs, to run in
	binary.LittleEndian.PutUint32(all[header:], 0x4004)
	all[header+4] = 1
	return append(all, content...)
}

// ForSquashfs returns an archive without entries that mksquashfs changes: times are
// in whole seconds, every directory has an entry, and no path leads out, goes
// through links or hides names.
func ForSquashfs(archive []byte) ([]byte, error) {
	var out bytes.Buffer
	w, r := tar.NewWriter(&out), tar.NewReader(bytes.NewReader(archive))
	dirs := map[string]bool{}
	describe := func(dir string) error {
		if dirs[dir] {
			return nil
		}
		dirs[dir] = true
		return w.WriteHeader(&tar.Header{Name: "./" + dir, Typeflag: tar.TypeDir, Mode: 0o755, ModTime: time.Unix(5, 0)})
	}
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			err := w.Close()
			return out.Bytes(), err
		}
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(header.Name, "../") || strings.HasPrefix(header.Name, "lib/") || strings.Contains(header.Name, ".wh.") {
			continue
		}
		parts := strings.Split(strings.TrimSuffix(header.Name, "/"), "/")
		for k := range parts {
			if err := describe(strings.Join(parts[:k], "/")); err != nil {
				return nil, err
			}
		}
		dirs[strings.Join(parts, "/")] = true
		header.ModTime = header.ModTime.Truncate(time.Second)
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.Copy(w, r); err != nil {
			return nil, err
		}
	}
}
