package batch

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"time"
)

// readPeriod is the interval between reads of a file. Each read opens the file
// again, because a network file system fetches others' writes at an open.
const readPeriod = 250 * time.Millisecond

// Tail copies a file that grows. When ctx ends, it copies the rest and returns. The file
// need not exist yet. If it becomes shorter, as the output of a requeued job does, Tail
// copies it from its start.
func Tail(ctx context.Context, path string, to io.Writer) error {
	var offset int64
	for {
		ending := ctx.Err() != nil
		read, err := copyFrom(path, offset, to)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		offset = read
		if ending {
			return nil
		}
		select {
		case <-time.After(readPeriod):
		case <-ctx.Done():
		}
	}
}

// copyFrom copies a file from an offset on, and returns the offset of the next byte.
func copyFrom(path string, offset int64, to io.Writer) (int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return offset, err
	}
	if info.Size() < offset {
		offset = 0
	}
	if _, err := file.Seek(offset, io.SeekStart); err != nil {
		return offset, err
	}
	copied, err := io.Copy(to, file)
	return offset + copied, err
}
