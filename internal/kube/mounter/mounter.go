// Package mounter mounts and unmounts for the kubelet by system call. Upstream
// executes mount(8) and umount(8). berth does not ship these programs, and they cost a
// fork for every volume of every pod. Mounts of the sandbox itself do not belong here,
// nor file systems that need a helper program (nfs, fuse).
package mounter

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	mount "k8s.io/mount-utils"
)

// Mounter is a mount.Interface. The embedded upstream type reads existing mounts from
// /proc. Its zero value executes no program.
type Mounter struct{ mount.Mounter }

var _ mount.MounterForceUnmounter = (*Mounter)(nil)

// New returns a Mounter for the mount namespace of the process.
func New() *Mounter { return &Mounter{} }

// Mount mounts source at target with options of mount(8).
func (m *Mounter) Mount(source, target, fstype string, options []string) error {
	return m.MountSensitive(source, target, fstype, options, nil)
}

// MountSensitive works like Mount, with further options that no error message
// repeats.
func (m *Mounter) MountSensitive(source, target, fstype string, options, sensitive []string) error {
	o := parse(slices.Concat(options, sensitive))
	if err := o.apply(source, target, fstype); err != nil {
		return fmt.Errorf("mount %s (source %q, type %q, options %q): %w",
			target, source, fstype, strings.Join(options, ","), err)
	}
	return nil
}

// MountSensitiveWithoutSystemd calls MountSensitive: systemd is never involved.
func (m *Mounter) MountSensitiveWithoutSystemd(source, target, fstype string, options, sensitive []string) error {
	return m.MountSensitive(source, target, fstype, options, sensitive)
}

// MountSensitiveWithoutSystemdWithMountFlags calls MountSensitive. The only flag
// that the kubelet passes is --no-canonicalize, and a system call does not
// canonicalize.
func (m *Mounter) MountSensitiveWithoutSystemdWithMountFlags(source, target, fstype string, options, sensitive, mountFlags []string) error {
	for _, f := range mountFlags {
		if f != "--no-canonicalize" {
			return fmt.Errorf("mount %s: flag %q is not supported", target, f)
		}
	}
	return m.MountSensitive(source, target, fstype, options, sensitive)
}

// Unmount unmounts target. As CanSafelySkipMountPointCheck promises, a target that is
// not a mount point is no error.
func (m *Mounter) Unmount(target string) error { return unmount(target, 0) }

// UnmountWithForce unmounts target. If that takes longer than timeout, it forces the
// unmount (MNT_FORCE) and returns that call's error.
func (m *Mounter) UnmountWithForce(target string, timeout time.Duration) error {
	done := make(chan error, 1)
	go func() { done <- unmount(target, 0) }()
	select {
	case err := <-done:
		return err
	case <-time.After(timeout):
		return unmount(target, unix.MNT_FORCE)
	}
}

// CanSafelySkipMountPointCheck returns true: see Unmount.
func (m *Mounter) CanSafelySkipMountPointCheck() bool { return true }

func unmount(target string, flags int) error {
	err := unix.Unmount(target, flags|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", target, err)
	}
	return nil
}

// makeRShared makes path a mount point whose mounts propagate to containers with
// mountPropagation.
func makeRShared(path string) error {
	m := New()
	is, err := m.IsMountPoint(path)
	if err != nil {
		return fmt.Errorf("look for a mount at %s: %w", path, err)
	}
	if !is {
		if err := unix.Mount(path, path, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("bind %s to itself: %w", path, err)
		}
	}
	if err := unix.Mount("", path, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mount %s shared: %w", path, err)
	}
	return nil
}
