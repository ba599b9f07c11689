package deliver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"berth.dev/berth/bench/internal/window"
)

// Usage returns the CPU time in seconds that the user's processes on this machine have
// used, including their reaped children. It omits processes of the bench itself. It returns
// an error if /proc cannot be listed.
func Usage() (total float64, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, err
	}
	const longest = 15 // bytes of a process name that the kernel keeps
	own := filepath.Base(self)
	own = own[:min(longest, len(own))]
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list the processes: %w", err)
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		// Read the status instead of the folder's owner, which is root for a process that
		// may not be traced.
		status, err := os.ReadFile("/proc/" + entry.Name() + "/status")
		if err != nil {
			continue // the process has ended
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

// readOwner returns the real user ID in the text of /proc/PID/status.
func readOwner(text string) (int, bool) {
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Uid:" {
			uid, err := strconv.Atoi(fields[1])
			return uid, err == nil
		}
	}
	return 0, false
}

// readStat returns the name in the text of /proc/PID/stat, and the sum of fields 14 to 17 in
// seconds: the CPU time of the process and of its reaped children. ok is false if the text
// has another format. The name may contain any characters.
func readStat(text string) (name string, seconds float64, ok bool) {
	start, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if start < 0 || end < start {
		return "", 0, false
	}
	fields := strings.Fields(text[end+1:])
	const first, last = 11, 15 // fields 14 to 17: fields[0] is field 3
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
