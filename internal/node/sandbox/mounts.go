package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
)

// cgroupMount is the usual mount point of control groups.
const cgroupMount = "/sys/fs/cgroup"

// setUpMounts arranges the file system. The host's tree stays visible, except
// where the components need a path that belongs to root; a mount covers it.
// pivot_root is not used, because it is impossible on a diskless node, whose root
// is a rootfs.
func setUpMounts(config Config) error {
	resolvConf, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		resolvConf = "" // this host has none to cover
	}
	// New mounts of the host still appear here (automounted homes), but mounts
	// made here do not reach the host. Below, MS_SHARED lets pods request
	// bidirectional propagation among themselves.
	if err := linux.SetPropagation("/", unix.MS_SLAVE); err != nil {
		return err
	}
	if needsRoot(config.Binds) {
		// The copy is made at /sys, which setUpSys covers in any case.
		if err := linux.CopyUpRoot("/sys"); err != nil {
			return err
		}
	}
	if err := linux.SetPropagation("/", unix.MS_SHARED); err != nil {
		return err
	}
	if err := linux.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("%w; something may be mounted below the host's /proc, see 'berth doctor'", err)
	}
	if err := setUpSys(config.Cgroup != ""); err != nil {
		return err
	}
	if err := coverRun(config.Keep); err != nil {
		return err
	}
	for path, file := range config.Files {
		if err := writeFile(path, file); err != nil {
			return err
		}
	}
	for target, source := range config.Binds {
		if err := bindDirectory(source, target); err != nil {
			return err
		}
	}
	if resolvConf == "" || config.ResolvConf == "" {
		return nil
	}
	return coverResolvConf(resolvConf, config.ResolvConf)
}

// needsRoot reports whether a mount point must be made in the root directory,
// which belongs to another user and cannot be covered for processes inside.
func needsRoot(binds map[string]string) bool {
	for target := range binds {
		if _, err := os.Stat(target); filepath.Dir(target) == "/" && errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	return false
}

// setUpSys mounts the network namespace's own sysfs and the cgroup2 hierarchy, so
// that every program sees a unified hierarchy, whatever the host has. Its root is
// the run's group if the user was delegated one. Otherwise its root is the job's
// group and the mount is read-only: the user may be able to write there, and
// groups of the runtime would remain.
func setUpSys(delegated bool) error {
	if err := linux.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	err := linux.Mount("cgroup2", cgroupMount, "cgroup2", flags, "")
	if err != nil || delegated {
		return err
	}
	return linux.Mount("", cgroupMount, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|flags, "")
}

// coverRun puts a tmpfs over /run, and brings back the directories below it
// that the run needs.
func coverRun(keep []string) error {
	kept := map[string]int{}
	for _, directory := range keep {
		if !strings.HasPrefix(directory, "/run/") {
			continue
		}
		fd, err := unix.Open(directory, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", directory, err)
		}
		defer unix.Close(fd)
		kept[directory] = fd
	}
	if err := linux.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return err
	}
	for directory, fd := range kept {
		if err := bindDirectory(fmt.Sprintf("/proc/self/fd/%d", fd), directory); err != nil {
			return err
		}
	}
	return nil
}

// bindDirectory binds source to target. If target does not exist and cannot be
// made, it covers the parent with a copy that allows making target.
func bindDirectory(source, target string) error {
	err := os.MkdirAll(target, 0o755)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		if err := linux.CopyUp(filepath.Dir(target)); err != nil {
			return err
		}
		err = os.MkdirAll(target, 0o755)
	}
	if err != nil {
		return fmt.Errorf("make mount point: %w", err)
	}
	return linux.Bind(source, target)
}

func writeFile(path string, file File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	if err := os.WriteFile(path, file.Content, file.Mode); err != nil {
		return err
	}
	return nil
}

// coverResolvConf covers the target of /etc/resolv.conf with the sandbox's file.
// A target below /run no longer exists, and is made again.
func coverResolvConf(target, source string) error {
	if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
		if err := writeFile(target, File{Mode: 0o644}); err != nil {
			return err
		}
		// The directory must be open to every user of every pod.
		if err := os.Chmod(filepath.Dir(target), 0o755); err != nil {
			return err
		}
	}
	return linux.Bind(source, target)
}
