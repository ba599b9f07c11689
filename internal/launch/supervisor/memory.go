package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"berth.dev/berth/internal/node/sandbox"
)

// oomKills returns the number of processes that the kernel has killed for lack of memory
// since the machine started, in all its jobs.
func oomKills(proc string) (kills uint64) {
	text, err := os.ReadFile(filepath.Join(proc, "vmstat"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if number, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ = strconv.ParseUint(strings.TrimSpace(number), 10, 64)
		}
	}
	return kills
}

// memoryShortage explains the end of a role if the kernel may have killed it for lack of
// memory. It names the pod that uses most memory, which is likely the cause. It returns ""
// for other ends. The caller holds mu.
func (s *Supervisor) memoryShortage(status sandbox.Status) string {
	if status.Signal != syscall.SIGKILL || oomKills(s.proc) <= s.oomKills[0] {
		return ""
	}
	text := "the kernel has just killed processes for lack of memory"
	if pod, pages := podWithMost(s.proc, ownPages); pages > 0 {
		text += fmt.Sprintf("; pod %s uses most, %d MB", pod, pages*os.Getpagesize()/1e6)
	}
	return " (" + text + ")"
}

// ownPages returns the number of pages that a process shares with no file.
func ownPages(proc, process string) int {
	text, err := os.ReadFile(filepath.Join(proc, process, "statm"))
	if err != nil {
		return 0
	}
	var size, resident, shared int
	if _, err := fmt.Sscan(string(text), &size, &resident, &shared); err != nil {
		return 0
	}
	return resident - shared
}
