package fastpath

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// relatives returns the parent of a thread's process, and the thread's children.
func relatives(thread int) []int {
	dir := "/proc/" + strconv.Itoa(thread)
	var found []int
	if stat, err := readSmall(dir + "/stat"); err == nil {
		fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
		if len(fields) > 1 {
			if parent, err := strconv.Atoi(string(fields[1])); err == nil && parent > 1 {
				found = append(found, parent)
			}
		}
	}
	children, _ := readSmall(dir + "/task/" + strconv.Itoa(thread) + "/children")
	for field := range bytes.FieldsSeq(children) {
		if child, err := strconv.Atoi(string(field)); err == nil {
			found = append(found, child)
		}
	}
	return found
}

// readSmall reads a file of /proc that fits into one page.
func readSmall(path string) ([]byte, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	b := make([]byte, 4096)
	n, err := unix.Read(fd, b)
	return b[:max(0, n)], err
}

// listDescriptors returns the descriptors of a thread. If there are more than most, it
// stops soon after it has found so many. It reads fdinfo instead of fd: since Linux 5.14,
// every process that may trace the thread may read fdinfo.
func listDescriptors(thread, most int) ([]int, error) {
	dir, err := unix.Open("/proc/"+strconv.Itoa(thread)+"/fdinfo", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(dir)
	var found []int
	buffer := make([]byte, 4096)
	for len(found) <= most {
		n, err := unix.Getdents(dir, buffer)
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		const headerLen = 19 // of struct linux_dirent64, before the name
		for rest := buffer[:n]; len(rest) > headerLen; {
			length := int(binary.NativeEndian.Uint16(rest[16:]))
			name, _, _ := bytes.Cut(rest[headerLen:length], []byte{0})
			if fd, err := strconv.Atoi(string(name)); err == nil {
				found = append(found, fd)
			}
			rest = rest[length:]
		}
	}
	return found, nil
}

// processOf returns the ID of a pidfd's process or thread in the current PID namespace. It
// returns ESRCH if the process has ended or has no ID there.
func processOf(pidfd int) (int, error) {
	info, err := readSmall("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(info) {
		if text, found := bytes.CutPrefix(line, []byte("Pid:")); found {
			number, err := strconv.Atoi(string(bytes.TrimSpace(text)))
			if err == nil && number > 0 {
				return number, nil
			}
		}
	}
	return 0, fmt.Errorf("find a process: %w", unix.ESRCH)
}

// socketNames lists the sockets of a process: a descriptor and the kernel's name for the
// socket on each line.
func socketNames(process int) ([]byte, error) {
	dir := "/proc/" + strconv.Itoa(process) + "/fd"
	opened, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	names, err := opened.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for _, name := range names {
		if target, err := os.Readlink(dir + "/" + name); err == nil && strings.HasPrefix(target, "socket:") {
			fmt.Fprintf(&text, "%s %s\n", name, target)
		}
	}
	return text.Bytes(), nil
}
