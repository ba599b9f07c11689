package metrics

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ingests is containerd's directory for incomplete content, below its root. Each
// download has a directory with its data and, if known, its total size.
const ingests = "io.containerd.content.v1.content/ingest"

// ReceivedImages adds up what containerd has of the parts of images that it is just
// receiving, and what they will be, in bytes. What is complete, or comes later,
// is not in it. The files are read because they are there in any case, and
// nobody has to be asked.
func ReceivedImages(root string) (received, expected int64) {
	parts, _ := filepath.Glob(filepath.Join(root, ingests, "*"))
	for _, part := range parts {
		info, err := os.Stat(filepath.Join(part, "data"))
		if err != nil {
			continue // just complete
		}
		whole := info.Size()
		if text, err := os.ReadFile(filepath.Join(part, "total")); err == nil {
			if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
				whole = max(whole, n)
			}
		}
		received += info.Size()
		expected += whole
	}
	return received, expected
}
