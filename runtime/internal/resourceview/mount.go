package resourceview

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Mount mounts files at dir by FUSE. It serves them in the background until their last mount
// is removed, including bind mounts elsewhere. If this process ends before that, reads fail
// with ENOTCONN.
func Mount(dir string, files map[string]func() string, log *slog.Logger) error {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("open /dev/fuse: %w", err)
	}
	// Every user of the container reads the files, so all may.
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions", fd)
	if err := unix.Mount("berth", dir, "fuse.berth", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, options); err != nil {
		unix.Close(fd)
		return fmt.Errorf("mount fuse at %s: %w", dir, err)
	}
	// Call os.NewFile only now: for Go's poller, a device that is not mounted yet looks like
	// one after the unmount.
	device := os.NewFile(uintptr(fd), "/dev/fuse")
	go func() {
		defer device.Close()
		if err := newServer(files).serve(device); err != nil {
			log.Error("the container's view of its limits ends", "error", err)
		}
	}()
	return nil
}

// Unmount removes the mount at dir. Bind mounts of it in containers stay. It
// returns no error if dir has no mount.
func Unmount(dir string) error {
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", dir, err)
	}
	return nil
}

// Write writes the current content of the files into dir.
func Write(dir string, files map[string]func() string) error {
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("make the container's view of its limits: %w", err)
		}
		if err := os.WriteFile(path, []byte(text()), 0o444); err != nil {
			return fmt.Errorf("make the container's view of its limits: %w", err)
		}
	}
	return nil
}
