package launch

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
)

// tailBytes is how much of a log's end is looked at for its last lines.
const tailBytes = 16 << 10

// panicBytes is how far from a log's end the cause of a Go program's crash is
// looked for: the stacks of all goroutines come after it.
const panicBytes = 1 << 20

// tail returns the last lines of a log file, or nothing.
func tail(path string, lines int) []string {
	all := lastOf(path, tailBytes)
	return all[max(0, len(all)-lines):]
}

// crash returns what a Go program said last before the stacks of its
// goroutines, or nothing.
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
