package linux

import (
	"bytes"
	"os"
	"strconv"
)

// ProcessStopped is the state of a process that a signal stopped.
const ProcessStopped = 'T'

// ProcessState returns the state letter of a process as in /proc/PID/stat, or
// 0 when there is no such process.
func ProcessState(pid int) byte {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// The command name may hold anything, also parentheses.
	end := bytes.LastIndexByte(content, ')')
	if end < 0 || end+2 >= len(content) {
		return 0
	}
	return content[end+2]
}
