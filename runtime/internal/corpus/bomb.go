package corpus

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Bomb returns the path of a packed archive with one file of size bytes. The archive
// is a thousand times smaller.
func Bomb(t testing.TB, name string, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bomb.tar.gz")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	packed := gzip.NewWriter(file)
	archive := tar.NewWriter(packed)
	err = archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: size})
	if err == nil {
		_, err = io.CopyN(archive, same{}, size)
	}
	if err := errors.Join(err, archive.Close(), packed.Close(), file.Close()); err != nil {
		t.Fatal(err)
	}
	return path
}

// same is an endless text. It is not zeros, which file systems do not store.
type same struct{}

func (same) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'b'
	}
	return len(p), nil
}

// SmallDisk mounts a file system of 256 MiB.
func SmallDisk(t testing.TB) string {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, to mount a small file system")
	}
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=256m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := unix.Unmount(dir, 0)
		// containerd's store leaves a file that it has opened to the garbage collector.
		for end := time.Now().Add(20 * time.Second); errors.Is(err, unix.EBUSY) && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			runtime.GC()
			err = unix.Unmount(dir, 0)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return dir
}

// Free returns how many bytes of a directory's file system are free.
func Free(t testing.TB, dir string) uint64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return st.Bavail * uint64(st.Bsize)
}
