package archived

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/diff"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

func read(t *testing.T, p Part) (string, error) {
	t.Helper()
	blob, err := p.ReaderAt(t.Context(), ocispec.Descriptor{})
	if err != nil {
		return "", err
	}
	if blob.Size() != p.Size {
		t.Errorf("it has %d bytes, want %d", blob.Size(), p.Size)
	}
	text, err := io.ReadAll(content.NewReader(blob))
	return string(text), errors.Join(err, blob.Close())
}

// The call's option decides what is read, whatever the file's name.
func TestPartComesFromCall(t *testing.T) {
	t.Chdir(t.TempDir())
	name := "image \xff.tar"
	if err := os.WriteFile(name, []byte("headers, the layer, and more"), 0o600); err != nil {
		t.Fatal(err)
	}
	apply, err := Part{name, 9, 9}.Apply()
	if err != nil {
		t.Fatal(err)
	}
	at, found, err := Of(t.Context(), ocispec.Descriptor{}, []diff.ApplyOpt{apply, diff.WithSyncFs(true)})
	if err != nil || !found || !filepath.IsAbs(at.Path) {
		t.Fatalf("%+v, %t, %v", at, found, err)
	}
	if got, err := read(t, at); err != nil || got != "the layer" {
		t.Errorf("it has %q, %v", got, err)
	}
	if _, found, err := Of(t.Context(), ocispec.Descriptor{}, []diff.ApplyOpt{diff.WithSyncFs(true)}); found || err != nil {
		t.Errorf("a layer of no archive: %t, %v", found, err)
	}
	wrong := errors.New("wrong")
	if _, _, err := Of(t.Context(), ocispec.Descriptor{}, []diff.ApplyOpt{func(context.Context, ocispec.Descriptor, *diff.ApplyConfig) error { return wrong }}); !errors.Is(err, wrong) {
		t.Errorf("an option that fails: %v", err)
	}
}

// A file that is not what it was is an error at once, and nobody waits for a pipe.
func TestChangingFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blob")
	if err := os.WriteFile(path, []byte("all of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	whole, err := Whole(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := read(t, whole); err != nil || got != "all of it" {
		t.Errorf("it has %q, %v", got, err)
	}
	if err := os.Truncate(path, whole.Size-1); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, whole); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that was cut off: %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, whole); !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
		t.Errorf("a file that is gone: %v", err)
	}
	if _, err := Whole(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("all of no file: %v", err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, whole); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := read(t, Part{"/dev/zero", 0, 1}); err == nil || !strings.Contains(err.Error(), "is not a file") {
		t.Errorf("a device: %v", err)
	}
}
