package proof

import (
	"os"
	"path/filepath"
	"testing"

	"berth.dev/berth/internal/base/cluster"
)

func TestShortInputGoesToAllNodes(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, size int64) *os.File {
		t.Helper()
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { file.Close() })
		if err := file.Truncate(size); err != nil {
			t.Fatal(err)
		}
		return file
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	for name, test := range map[string]struct {
		file *os.File
		want bool
	}{
		"nothing":      {null, true},
		"a small file": {file("small", muchInput-1), true},
		"a large file": {file("large", muchInput), false},
		"a pipe":       {reader, false}, // nobody knows how much comes
	} {
		if got := isSmall(test.file); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}

func TestInputReader(t *testing.T) {
	for name, test := range map[string]struct {
		spec cluster.Spec
		want bool
	}{
		"manifests in files":    {cluster.Spec{Manifests: []string{"a.yaml"}}, false},
		"a manifest from input": {cluster.Spec{Manifests: []string{"a.yaml", "-"}}, true},
		"a command":             {cluster.Spec{Command: []string{"cat"}}, true},
	} {
		if got := UsesInput(test.spec); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
