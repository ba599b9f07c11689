package layercache

import (
	"testing"

	"golang.org/x/sys/unix"
)

// mountSmall mounts a file system of a megabyte for the time of a test.
func mountSmall(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mounts are not allowed here: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}
