package record

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Writer adds lines to a file that no other process writes.
type Writer struct{ file *os.File }

// Extensions of packed files, which are only read. bench/results uses zstd, because
// records repeat at distances beyond gzip's window.
const (
	packedGzip = ".gz"
	packedZstd = ".zst"
)

// older is the extension of files in bench/results that are older than this format.
const older = ".json"

// Append opens or creates a file and locks it. It ends a last line that a crash left
// unfinished, so that the next line is complete. It returns an error for a packed file, and
// if another process writes to the file.
func Append(path string) (*Writer, error) {
	if unpackedName(path) != path {
		return nil, fmt.Errorf("add to records (%s): they are packed; unpack them with gunzip or zstd -d, or give another file with --out", path)
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("another berth bench writes to %s: wait for it, or give another file with --out", path)
		}
		return nil, fmt.Errorf("lock records (%s): %w", path, err)
	}
	w := &Writer{file}
	if err := w.finishLastLine(); err != nil {
		file.Close()
		return nil, fmt.Errorf("finish the last line of %s: %w", path, err)
	}
	return w, nil
}

func (w *Writer) finishLastLine() error {
	info, err := w.file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	last := make([]byte, 1)
	if _, err := w.file.ReadAt(last, info.Size()-1); err != nil {
		return err
	}
	if last[0] == '\n' {
		return nil
	}
	_, err = w.file.Write([]byte("\n"))
	return err
}

// Add sets the Schema and the Time of a line, writes it, and returns once it is on disk.
func (w *Writer) Add(line Line) error {
	line.Schema, line.Time = schema, time.Now().UTC()
	encoded, err := json.Marshal(line)
	if err == nil {
		_, err = w.file.Write(append(encoded, '\n'))
	}
	if err == nil {
		err = w.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("write record (%s): %w", w.file.Name(), err)
	}
	return nil
}

// Close closes the file.
func (w *Writer) Close() error { return w.file.Close() }

// unpackedName returns a file's name without the extension of packing.
func unpackedName(path string) string {
	return strings.TrimSuffix(strings.TrimSuffix(path, packedGzip), packedZstd)
}

// unpack decompresses a file if its extension says that it is packed.
func unpack(path string, file io.Reader) (io.Reader, error) {
	switch {
	case strings.HasSuffix(path, packedGzip):
		return gzip.NewReader(file)
	case strings.HasSuffix(path, packedZstd):
		return zstd.NewReader(file, zstd.WithDecoderConcurrency(1)) // which needs no Close
	}
	return file, nil
}

// ReadFile reads a file of records, which gzip or zstd may have packed. A missing file
// has no records.
func ReadFile(path string) ([]Line, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	defer file.Close()
	from, err := unpack(path, file)
	if err != nil {
		return nil, fmt.Errorf("read records (%s): %w", path, err)
	}
	lines, err := read(from)
	switch {
	case err != nil && strings.HasSuffix(unpackedName(path), older):
		return nil, fmt.Errorf("read records (%s): the records are older than 'berth bench' (%s), which makes no report of them: %w", path, older, err)
	case err != nil:
		return nil, fmt.Errorf("read records (%s): %w", path, err)
	}
	return lines, nil
}

// read reads records. For a line that a crash cut off, it returns only the number of the
// line; the session that follows repeats the trial.
func read(from io.Reader) ([]Line, error) {
	var lines []Line
	reader := bufio.NewReader(from)
	for n := 1; ; n++ {
		text, err := reader.ReadBytes('\n')
		if text = bytes.TrimSpace(text); len(text) > 0 {
			var line Line
			switch wrong := json.Unmarshal(text, &line); {
			case wrong != nil && cutOff(wrong):
				lines = append(lines, Line{CutOff: n})
			case wrong != nil:
				return nil, fmt.Errorf("line %d: %w", n, wrong)
			case line.Schema == firstSchema:
				line.renameSystems()
				lines = append(lines, line)
			case line.Schema != schema:
				return nil, fmt.Errorf("line %d has version %d of the format, but this program reads only up to %d", n, line.Schema, schema)
			default:
				lines = append(lines, line)
			}
		}
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// cutOff reports whether the error is that of JSON which ends too early.
func cutOff(err error) bool {
	var syntax *json.SyntaxError
	return errors.As(err, &syntax) && syntax.Error() == "unexpected end of JSON input"
}
