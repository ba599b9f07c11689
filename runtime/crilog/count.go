package crilog

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// CountsEnv names the environment variable with the directory of the counts. The directory
// must be in memory, because counts are needed when a disk is full.
const CountsEnv = "BERTH_UNWRITTEN"

// Count counts the bytes of output that could not be written to the logs of a
// container, in all its runs. The count is the length of a sparse file. The length can grow
// even if memory is full, and a reader never sees an incomplete value.
type Count struct{ path string }

// NewCount returns the count below dir for a log file, POD-DIRECTORY/CONTAINER/N.log.
// It counts nothing if dir is empty.
func NewCount(dir, log string) Count {
	if dir == "" {
		return Count{}
	}
	container, pod := filepath.Dir(log), filepath.Dir(filepath.Dir(log))
	return Count{filepath.Join(dir, filepath.Base(pod), filepath.Base(container))}
}

// Add adds lost bytes to the count, which both streams of a container share.
func (c Count) Add(bytes int) error {
	if c.path == "" || bytes == 0 {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(c.path), 0o755); err != nil {
		return fmt.Errorf("make the directory of a count: %w", err)
	}
	file, err := os.OpenFile(c.path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("open the count: %w", err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil { // until Close
		return fmt.Errorf("lock %s: %w", c.path, err)
	}
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("read the count: %w", err)
	}
	if err := file.Truncate(info.Size() + int64(bytes)); err != nil {
		return fmt.Errorf("set the count: %w", err)
	}
	return nil
}
