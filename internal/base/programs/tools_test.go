package programs

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestLinkTools(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "bin")
	if err := LinkTools(bin); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(bin)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if want := append([]string{"berth"}, Tools()...); !slices.Equal(slices.Sorted(slices.Values(names)), slices.Sorted(slices.Values(want))) {
		t.Errorf("made %q, want %q", names, want)
	}
	if err := LinkTools(bin); err == nil {
		t.Error("a directory that is there was taken")
	}
}
