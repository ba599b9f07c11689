package linux

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// MemoryFile returns an anonymous file that holds content, positioned at its
// start. A child inherits it, so that a secret needs no path, argument or
// environment variable.
func MemoryFile(name string, content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create memory file %s: %w", name, err)
	}
	file := os.NewFile(uintptr(fd), name)
	if _, err := file.Write(content); err != nil {
		file.Close()
		return nil, fmt.Errorf("write memory file %s: %w", name, err)
	}
	if _, err := file.Seek(0, 0); err != nil {
		file.Close()
		return nil, fmt.Errorf("rewind memory file %s: %w", name, err)
	}
	return file, nil
}
