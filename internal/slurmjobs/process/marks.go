package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// uploadedName names the file with the marks of an object, in the folder of its records.
const uploadedName = "uploaded"

// marks is a file with a line for each file that was uploaded. So an attempt uploads no file again
// that an earlier one has uploaded, also after a crash.
type marks struct {
	path string
	// last maps destinations to the versions of the files that were last uploaded there.
	last map[string]string
}

// mark states that a version of a file is at a destination in S3. Both fields are parts of a line.
type mark struct{ destination, version string }

// newMark returns the mark of an open file whose first size bytes are to be uploaded. The time of the
// last change of the inode also tells two files apart if their modification times were restored.
func newMark(destination, path string, file *os.File, size int64) (mark, error) {
	var info unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &info); err != nil {
		return mark{}, fmt.Errorf("stat %s: %w", path, err)
	}
	return mark{strconv.Quote(destination), fmt.Sprintf(" %q %d %d %d", path, size, info.Mtim.Nano(), info.Ctim.Nano())}, nil
}

// readMarks reads the marks in a file. A missing file has none.
func readMarks(path string) (marks, error) {
	m := marks{path, map[string]string{}}
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return m, fmt.Errorf("read the marks of uploaded files: %w", err)
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		// A crash may leave a part of a line, which equals no version.
		if destination, err := strconv.QuotedPrefix(line); err == nil {
			m.last[destination] = line[len(destination):]
		}
	}
	return m, nil
}

func (m marks) has(wanted mark) bool { return m.last[wanted.destination] == wanted.version }

// add adds a mark. After an error, the file may lack it.
func (m marks) add(added mark) error {
	m.last[added.destination] = added.version
	file, err := os.OpenFile(m.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		// The first line feed ends the part of a line that a crash may have left.
		_, err = file.WriteString("\n" + added.destination + added.version + "\n")
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		return fmt.Errorf("mark an uploaded file: %w", err)
	}
	return nil
}
