package linux

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage holds the processor time and memory that a process uses.
type Usage struct {
	// CPU is the processor time of the process. ChildCPU is the processor time of
	// the children that it has waited for, and of their children.
	CPU, ChildCPU time.Duration
	// Memory is the private memory and the share of shared memory, in bytes.
	Memory uint64
}

// UsageOf measures a process. The kernel walks the page tables to measure its memory, which
// takes some milliseconds for a large process.
func UsageOf(pid int) (u Usage, err error) {
	s, err := ReadStat("/proc", pid)
	if err != nil {
		return u, err
	}
	u.CPU, u.ChildCPU = s.User+s.System, s.ChildUser+s.ChildSystem
	directory := filepath.Join("/proc", strconv.Itoa(pid))
	if u.Memory, err = Kilobytes(filepath.Join(directory, "smaps_rollup"), "Pss:"); err != nil {
		// Some kernels refuse access; the resident memory is an upper bound.
		u.Memory, err = Kilobytes(filepath.Join(directory, "status"), "VmRSS:")
	}
	return u, err
}

// Kilobytes returns the value of a line such as "Pss:  123 kB" of a file, in bytes. name is
// the first word of the line. It returns an error if the file has no such line.
func Kilobytes(path, name string) (uint64, error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == name {
			n, err := strconv.ParseUint(words[1], 10, 54)
			return n << 10, err
		}
	}
	return 0, errors.Join(lines.Err(), fmt.Errorf("read %s: no line %s", path, name))
}

// Arguments returns a process's command line. It is empty for a process that has
// ended or is hidden.
func Arguments(pid int) []string {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil || len(content) == 0 {
		return nil
	}
	var all []string
	for argument := range bytes.SplitSeq(bytes.TrimSuffix(content, []byte{0}), []byte{0}) {
		all = append(all, string(argument))
	}
	return all
}
