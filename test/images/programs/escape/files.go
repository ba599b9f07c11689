package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"
)

const up = "/../../../../../../../../../.."

// file tries to read the file that the pattern names on the host or in the sandbox.
func file(pattern, handle string) string {
	if pattern == "" {
		return "not tried"
	}
	roots := map[string]string{
		"its path":        "",
		"/proc/PID/root":  "/proc/[0-9]*/root",
		"/proc/PID/cwd":   "/proc/[0-9]*/cwd" + up,
		".. of a volume":  "/programs" + up,
		".. of /dev/shm":  "/dev/shm" + up,
		"/proc/1/map":     "/proc/1/map_files/*" + up,
		"a descriptor":    "/proc/[0-9]*/fd/*" + up,
		".. of hosts":     "/etc/hosts" + up,
		"/proc/self/task": "/proc/[0-9]*/task/*/root",
	}
	for _, how := range []string{"its path", "/proc/PID/root", "/proc/PID/cwd", ".. of a volume", ".. of /dev/shm", "/proc/1/map", "a descriptor", ".. of hosts", "/proc/self/task"} {
		// The pod's own files are not what is looked for.
		names, _ := filepath.Glob(roots[how] + pattern)
		for _, name := range names {
			if readable(name) {
				return how
			}
		}
	}
	if exec.Command("/proc/self/exe", "outside-root", pattern).Run() == nil {
		return "chroot"
	}
	if handle != "" && readableByHandle(handle) {
		return "open_by_handle_at"
	}
	return ""
}

func readable(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Read(make([]byte, 1))
	return err == nil
}

// readsOutsideRoot keeps a descriptor outside of a new root directory and leaves it by "..".
func readsOutsideRoot(pattern string) bool {
	fd, err := syscall.Open("/", syscall.O_RDONLY|syscall.O_DIRECTORY, 0)
	if err != nil || os.MkdirAll("/tmp/root", 0o700) != nil {
		return false
	}
	if syscall.Chroot("/tmp/root") != nil || syscall.Fchdir(fd) != nil {
		return false
	}
	names, _ := filepath.Glob(strings.TrimPrefix(up, "/") + pattern)
	for _, name := range names {
		if readable(name) {
			return true
		}
	}
	return false
}

// currentDirectory is AT_FDCWD.
const currentDirectory = ^uintptr(99)

// handleCalls returns the numbers of name_to_handle_at and open_by_handle_at, which package
// syscall lacks.
func handleCalls() (name, open uintptr) {
	if runtime.GOARCH == "arm64" {
		return 264, 265
	}
	return 303, 304
}

// fileHandle is struct file_handle of the kernel.
type fileHandle struct {
	size uint32
	kind int32
	data [128]byte
}

func handleOf(name string) (string, error) {
	path, err := syscall.BytePtrFromString(name)
	if err != nil {
		return "", err
	}
	call, _ := handleCalls()
	h, mount := fileHandle{size: 128}, int32(0)
	if _, _, errno := syscall.Syscall6(call, currentDirectory, uintptr(unsafe.Pointer(path)),
		uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&mount)), 0, 0); errno != 0 {
		return "", fmt.Errorf("get the handle of %s: %w", name, errno)
	}
	return hex.EncodeToString(append(binary.LittleEndian.AppendUint32(nil, uint32(h.kind)), h.data[:h.size]...)), nil
}

// readableByHandle opens the file by any directory of its file system, such as a volume.
func readableByHandle(text string) bool {
	raw, err := hex.DecodeString(text)
	if err != nil || len(raw) < 4 {
		return false
	}
	h := fileHandle{size: uint32(len(raw) - 4), kind: int32(binary.LittleEndian.Uint32(raw))}
	copy(h.data[:], raw[4:])
	_, call := handleCalls()
	for _, dir := range []string{"/", "/programs", "/volume", "/etc/hosts", "/dev/termination-log"} {
		at, err := syscall.Open(dir, syscall.O_RDONLY, 0)
		if err != nil {
			continue
		}
		fd, _, errno := syscall.Syscall(call, uintptr(at), uintptr(unsafe.Pointer(&h)), syscall.O_RDONLY)
		syscall.Close(at)
		if errno != 0 {
			continue
		}
		text := make([]byte, 4)
		n, _ := syscall.Read(int(fd), text)
		syscall.Close(int(fd))
		if string(text[:n]) == "bait" {
			return true
		}
	}
	return false
}
