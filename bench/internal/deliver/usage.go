package deliver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/window"
)

// Usage returns the CPU time in seconds of the user's processes on this machine,
// including their reaped children. It does not count the bench.
func Usage() (total float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	const longest = 15 // the kernel cuts names off here
	own := filepath.Base(self)
	own = own[:min(longest, len(own))]
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look at the processes: %w", err)
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		// The owner of the folder is no help: it is root if the process may not be traced.
		status, err := os.ReadFile("/proc/" + entry.Name() + "/status")
		if err != nil {
			continue // it has ended
		}
		if uid, ok := readOwner(string(status)); !ok || uid != os.Getuid() {
			continue
		}
		content, err := os.ReadFile("/proc/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		if name, seconds, ok := readStat(string(content)); ok && name != own {
			total += seconds
		}
	}
	return total, nil
}

// readOwner returns the real user id in /proc/PID/status.
func readOwner(text string) (int, bool) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Uid:" {
			uid, err := strconv.Atoi(fields[1])
			return uid, err == nil
		}
	}
	return 0, false
}

// readStat reads the name and fields 14 to 17 of /proc/PID/stat: the CPU time of the
// process and of its reaped children. The name may contain any characters.
func readStat(text string) (name string, seconds float64, ok bool) {
	start, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if start < 0 || end < start {
		return "", 0, false
	}
	fields := strings.Fields(text[end+1:])
	const first, last = 11, 15
	if len(fields) < last {
		return "", 0, false
	}
	for _, field := range fields[first:last] {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			return "", 0, false
		}
		seconds += n / window.Hertz
	}
	return text[start+1 : end], seconds, true
}
