package main

import (
	"bytes"
	"os"
	"path/filepath"
	"syscall"
)

const (
	ptraceSeize = 0x4206
	nsGetParent = 0xb702
)

// process looks for a process whose command line contains the word, and tries to trace it.
func process(word string) string {
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		line, err := os.ReadFile(name)
		if err != nil || !bytes.Contains(line, []byte(word)) {
			continue
		}
		pid := 0
		for _, digit := range filepath.Base(filepath.Dir(name)) {
			pid = 10*pid + int(digit-'0')
		}
		if _, _, errno := syscall.Syscall6(syscall.SYS_PTRACE, ptraceSeize, uintptr(pid), 0, 0, 0, 0); errno == 0 {
			return "ptrace"
		}
		return "seen"
	}
	return ""
}

// parentNamespace asks for the parents of all namespaces in sight that have one.
func parentNamespace() string {
	for _, pattern := range []string{"/proc/[0-9]*/ns/pid", "/proc/[0-9]*/ns/user"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			f, err := os.Open(name)
			if err != nil {
				continue
			}
			parent, _, errno := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), nsGetParent, 0)
			f.Close()
			if errno != 0 {
				continue
			}
			// A pod's own PID namespace has the sandbox's as its parent.
			grand, _, errno := syscall.Syscall(syscall.SYS_IOCTL, parent, nsGetParent, 0)
			syscall.Close(int(parent))
			if errno != 0 {
				continue
			}
			syscall.Close(int(grand))
			return name
		}
	}
	return ""
}

// kernelSettings opens settings of the whole kernel for writing, but writes nothing.
func kernelSettings() string {
	syscall.Mount("", "/proc/sys", "", syscall.MS_REMOUNT|syscall.MS_BIND, "")
	syscall.Unmount("/proc/sys", syscall.MNT_DETACH)
	roots := []string{"/proc", "/proc/1/root/proc"}
	if os.MkdirAll("/tmp/proc", 0o700) == nil && syscall.Mount("proc", "/tmp/proc", "proc", 0, "") == nil {
		defer syscall.Unmount("/tmp/proc", syscall.MNT_DETACH)
		roots = append(roots, "/tmp/proc")
	}
	for _, root := range roots {
		for _, name := range []string{"sys/kernel/core_pattern", "sys/kernel/modprobe", "sys/kernel/sysrq", "sys/kernel/dmesg_restrict",
			"sys/vm/drop_caches", "sys/vm/overcommit_memory", "sysrq-trigger", "kcore", "../sys/kernel/uevent_helper", "../sys/power/state"} {
			if writable(filepath.Join(root, name)) {
				return name
			}
		}
	}
	return ""
}

func writable(name string) bool {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	f.Close()
	return true
}

// releaseAgent mounts hierarchies of cgroups and writes back what their release_agent has.
func releaseAgent() string {
	places := []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"}
	for _, controller := range []string{"memory", "cpu", "rdma", "pids", "devices"} {
		at := "/tmp/cgroup-" + controller
		if os.MkdirAll(at, 0o700) == nil && syscall.Mount("cgroup", at, "cgroup", 0, controller) == nil {
			defer syscall.Unmount(at, syscall.MNT_DETACH)
			places = append(places, at)
		}
	}
	for _, place := range places {
		names, _ := filepath.Glob(filepath.Join(place, "release_agent"))
		for _, name := range names {
			text, _ := os.ReadFile(name)
			if os.WriteFile(name, append(bytes.TrimSpace(text), '\n'), 0) == nil {
				return name
			}
		}
	}
	return ""
}

// devices makes device files of the host's disks and memory, opens them, and mounts disks.
func devices() string {
	type device struct{ mode, major, minor uint32 }
	made := []device{{syscall.S_IFCHR, 1, 1}, {syscall.S_IFBLK, 7, 0}, {syscall.S_IFBLK, 8, 0}, {syscall.S_IFBLK, 8, 1}, {syscall.S_IFBLK, 254, 0}, {syscall.S_IFBLK, 259, 0}}
	var stat syscall.Stat_t
	if syscall.Stat("/programs", &stat) == nil {
		made = append(made, device{syscall.S_IFBLK, uint32(stat.Dev >> 8 & 0xfff), uint32(stat.Dev&0xff | stat.Dev>>12&0xfff00)})
	}
	names, _ := filepath.Glob("/dev/*")
	for _, d := range made {
		os.Remove("/tmp/device")
		if syscall.Mknod("/tmp/device", d.mode|0o600, int(d.major<<8|d.minor)) != nil {
			continue
		}
		if readable("/tmp/device") {
			return "mknod"
		}
	}
	os.MkdirAll("/tmp/disk", 0o700)
	for _, name := range names {
		info, err := os.Stat(name)
		if err != nil || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 && filepath.Base(name) != "mem" {
			continue
		}
		if readable(name) {
			return name
		}
		for _, kind := range []string{"ext4", "xfs", "btrfs"} {
			if syscall.Mount(name, "/tmp/disk", kind, syscall.MS_RDONLY, "") == nil {
				syscall.Unmount("/tmp/disk", syscall.MNT_DETACH)
				return "mount of " + name
			}
		}
	}
	return ""
}
