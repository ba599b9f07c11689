package launch

import (
	"bytes"
	"io"
	"os"
	"strings"
)

// tailBytes is how much of a log's end is looked at for its last lines.
const tailBytes = 16 << 10

// tail returns the last lines of a log file, or nothing.
func tail(path string, lines int) []string {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil
	}
	start := max(0, info.Size()-tailBytes)
	content, err := io.ReadAll(io.NewSectionReader(file, start, tailBytes))
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
	return all[max(0, len(all)-lines):]
}
