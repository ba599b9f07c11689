package probe

import (
	"bytes"
	"io/fs"
	"strconv"
	"strings"
)

// files reads the files of a machine. A file that is absent, or not permitted, counts
// as empty.
type files struct{ root fs.FS }

// read returns the content of a file, or nothing: absence is an answer here.
func (f files) read(path string) []byte {
	content, err := fs.ReadFile(f.root, strings.TrimPrefix(path, "/"))
	if err != nil {
		return nil
	}
	return content
}

func (f files) exists(path string) bool {
	_, err := fs.Stat(f.root, strings.TrimPrefix(path, "/"))
	return err == nil
}

// line returns a file of one value, without surrounding space.
func (f files) line(path string) string {
	return string(bytes.TrimSpace(f.read(path)))
}

// sysctl returns a kernel setting; ok is false where the kernel has none of
// that name.
func (f files) sysctl(name string) (value string, ok bool) {
	path := "/proc/sys/" + strings.ReplaceAll(name, ".", "/")
	return f.line(path), f.exists(path)
}

// number returns a numeric kernel setting. ok is false if the setting is absent or
// not a number.
func (f files) number(name string) (uint64, bool) {
	value, _ := f.sysctl(name)
	n, err := strconv.ParseUint(value, 10, 64)
	return n, err == nil
}

// processes returns the directories in /proc of the processes that can be seen.
func (f files) processes() []string {
	entries, err := fs.ReadDir(f.root, "proc")
	if err != nil {
		return nil
	}
	var found []string
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err == nil {
			found = append(found, "proc/"+entry.Name())
		}
	}
	return found
}
