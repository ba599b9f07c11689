package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
)

// uploadedName names the file with the marks of an object, in the folder of its records.
const uploadedName = "uploaded"

// marks holds a line for each file that was uploaded, so that an attempt does not repeat what an
// earlier one has done, also after a crash.
type marks struct {
	file *os.File
	text []byte
}

// openMarks opens the marks in a file, which it creates if it is missing.
func openMarks(path string) (*marks, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the marks of uploaded files: %w", err)
	}
	text, err := io.ReadAll(file)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("read the marks of uploaded files: %w", err)
	}
	// A crash may have left a part of a line.
	return &marks{file, text[:bytes.LastIndexByte(text, '\n')+1]}, nil
}

// once calls upload, unless a mark says that it was called for this file and destination, and that
// the file has not changed since. It reports whether it has called upload.
func (m *marks) once(destination string, file *os.File, upload func() error) (called bool, err error) {
	info, err := file.Stat()
	if err != nil {
		return false, err
	}
	mark := fmt.Appendf([]byte{'\n'}, "%q %d %d\n", destination, info.Size(), info.ModTime().UnixNano())
	if bytes.Contains(m.text, mark) {
		return false, nil
	}
	if err := upload(); err != nil {
		return true, err
	}
	// The line feed before it ends a part of a line.
	if _, err := m.file.Write(mark); err != nil {
		return true, fmt.Errorf("mark an uploaded file: %w", err)
	}
	return true, nil
}

func (m *marks) Close() error { return m.file.Close() }
