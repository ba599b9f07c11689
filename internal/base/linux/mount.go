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

// SetPropagation sets the propagation of mounts to other namespaces, for target and all
// mounts below it. flag is MS_PRIVATE, MS_SLAVE or MS_SHARED.
func SetPropagation(target string, flag uintptr) error {
	if err := unix.Mount("", target, "", flag|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("set propagation of %s to %#x: %w", target, flag, err)
	}
	return nil
}

// CopyUp covers dir by a tmpfs that holds the same entries, each bound from
// the original, so that new entries can be made beside them where the original
// directory belongs to somebody else.
func CopyUp(dir string) error { return copyUp(dir, dir) }

// CopyUpRoot does the same for the root directory, and makes the copy the root
// of this process and of its mount namespace, as switch_root does: pivot_root
// is impossible where the root is a rootfs. The mounts must not be shared. The
// copy is made on an existing directory below the root.
func CopyUpRoot(staging string) error {
	if err := copyUp("/", staging); err != nil {
		return err
	}
	if err := os.Chdir(staging); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move %s to /: %w", staging, err)
	}
	if err := unix.Chroot("."); err != nil {
		return fmt.Errorf("change the root to %s: %w", staging, err)
	}
	return os.Chdir("/")
}

// copyUp mounts a tmpfs on copied with the entries of dir. If copied is below dir, its
// current entries are bound too.
func copyUp(dir, copied string) error {
	originals := map[string]int{}
	for _, path := range []string{dir, copied} {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer unix.Close(fd)
		originals[path] = fd
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrPermission) {
		return err
	}
	if err := Mount("tmpfs", copied, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	for _, entry := range entries {
		source := fmt.Sprintf("/proc/self/fd/%d/%s", originals[dir], entry.Name())
		if fd, ok := originals[filepath.Join(dir, entry.Name())]; ok {
			source = fmt.Sprintf("/proc/self/fd/%d", fd)
		}
		if err := copyEntry(entry, source, filepath.Join(copied, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyEntry(entry os.DirEntry, source, target string) error {
	switch {
	case entry.Type()&os.ModeSymlink != 0:
		link, err := os.Readlink(source)
		if err != nil {
			return err
		}
		return os.Symlink(link, target)
	case entry.IsDir():
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
	default:
		if err := os.WriteFile(target, nil, 0o644); err != nil {
			return err
		}
	}
	return Bind(source, target)
}
