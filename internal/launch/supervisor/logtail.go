package supervisor

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
)

// tailBytes bounds the part of a log that is searched for its last lines.
const tailBytes = 16 << 10

// panicBytes bounds the part of a log that is searched for the cause of a crash. The
// stacks of all goroutines follow the cause.
const panicBytes = 1 << 20

// tail returns the last lines of a log file, or nothing.
func tail(path string, lines int) []string {
	all := lastOf(path, tailBytes)
	return all[max(0, len(all)-lines):]
}

// crash returns the line with the cause of a Go program's crash, or an empty
// string.
func crash(path string) string {
	for _, line := range slices.Backward(lastOf(path, panicBytes)) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
	}
	return ""
}

// lastOf returns the lines in the last bytes of a file, or nothing.
func lastOf(path string, most int64) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	start := max(0, info.Size()-most)
	content, err := io.ReadAll(io.NewSectionReader(file, start, most))
	if err != nil {
		return nil
	}
	content = bytes.TrimRight(content, "\n")
	if len(content) == 0 {
		return nil
	}
	all := strings.Split(string(content), "\n")
	if start > 0 && len(all) > 1 {
		all = all[1:] // the first one is cut
	}
	return all
}
