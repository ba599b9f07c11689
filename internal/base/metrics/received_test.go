package metrics

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReceivedBytesAreAddedUp(t *testing.T) {
	root := t.TempDir()
	if received, expected := ReceivedImages(root); received != 0 || expected != 0 {
		t.Errorf("nothing: %d of %d", received, expected)
	}
	for name, files := range map[string]map[string]string{
		"sized":    {"data": "1234", "total": "10"},
		"unsized":  {"data": "12"},
		"odd":      {"data": "123", "total": "x"},
		"complete": {"total": "99"},
	} {
		dir := filepath.Join(root, ingests, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, content := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	if received, expected := ReceivedImages(root); received != 9 || expected != 15 {
		t.Errorf("%d of %d, want 9 of 15", received, expected)
	}
}
