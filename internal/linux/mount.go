package linux

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Mount mounts source on target. For the meaning of flags and data see
// mount(2).
func Mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s on %s (source %s): %w", fstype, target, source, err)
	}
	return nil
}

// Bind makes source, with all mounts below it, visible at target.
func Bind(source, target string) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}

// SetPropagation changes how mounts below target reach other namespaces, for
// the whole tree: flag is one of MS_PRIVATE, MS_SLAVE, MS_SHARED.
func SetPropagation(target string, flag uintptr) error {
	if err := unix.Mount("", target, "", flag|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("set propagation of %s to %#x: %w", target, flag, err)
	}
	return nil
}

// CopyUp covers dir by a tmpfs that holds the same entries, each bound from
// the original, so that new entries can be made beside them where the original
// directory belongs to somebody else.
func CopyUp(dir string) error {
	original, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(original)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	if err := Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	for _, entry := range entries {
		source := fmt.Sprintf("/proc/self/fd/%d/%s", original, entry.Name())
		target := filepath.Join(dir, entry.Name())
		switch {
		case entry.Type()&os.ModeSymlink != 0:
			link, err := os.Readlink(source)
			if err != nil {
				return err
			}
			if err := os.Symlink(link, target); err != nil {
				return err
			}
			continue
		case entry.IsDir():
			if err := os.Mkdir(target, 0o755); err != nil {
				return err
			}
		default:
			if err := os.WriteFile(target, nil, 0o644); err != nil {
				return err
			}
		}
		if err := Bind(source, target); err != nil {
			return err
		}
	}
	return nil
}
