package linux

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ForgetProgram drops the pages of this program's own file from the process and
// returns their size in bytes. Pages that are used again come back from the page
// cache, which takes a microsecond for 64 KiB. Most pages of a large program are
// needed only during its start. They stay out, and the kernel can reclaim them.
//
// Pages that were written to have no copy in the file and stay.
func ForgetProgram() (bytes int64, err error) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0, fmt.Errorf("find the program's own file: %w", err)
	}
	file, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, fmt.Errorf("list the program's memory: %w", err)
	}
	defer file.Close()
	for _, m := range clean(bufio.NewScanner(file), self) {
		// unix.Madvise takes a slice, and this memory is the program itself.
		_, _, errno := unix.Syscall(unix.SYS_MADVISE, m.start, m.end-m.start, unix.MADV_DONTNEED)
		if errno != 0 {
			err = errors.Join(err, fmt.Errorf("forget pages of the program: %w", errno))
			continue
		}
		bytes += m.resident
	}
	return bytes, err
}

type mappedRange struct {
	start, end uintptr
	resident   int64
}

// clean returns the mappings of a file that are not writable and were not written
// to; see proc_pid_smaps(5).
func clean(lines *bufio.Scanner, path string) []mappedRange {
	var found []mappedRange
	var at mappedRange
	readable := false
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if from, to, ok := strings.Cut(first(fields), "-"); ok && len(fields) >= 5 {
			start, err1 := strconv.ParseUint(from, 16, 64)
			end, err2 := strconv.ParseUint(to, 16, 64)
			at = mappedRange{start: uintptr(start), end: uintptr(end)}
			readable = errors.Join(err1, err2) == nil && len(fields) == 6 && fields[5] == path &&
				strings.HasPrefix(fields[1], "r-") && strings.HasSuffix(fields[1], "p")
			continue
		}
		if !readable || len(fields) != 3 {
			continue
		}
		kilobytes, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			continue
		}
		switch fields[0] {
		case "Rss:":
			at.resident = kilobytes << 10
		case "Anonymous:":
			if kilobytes == 0 && at.resident > 0 {
				found = append(found, at)
			}
		}
	}
	return found
}

func first(fields []string) string {
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}
