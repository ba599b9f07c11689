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

// shortOfMemory reports whether the kernel may have killed a role for lack of memory. The
// caller holds mu.
func (s *Supervisor) shortOfMemory(status sandbox.Status) bool {
	return status.Signal == syscall.SIGKILL && oomKills(s.proc) > s.oomKills[0]
}

// nameLargestPod tells the user which pod of this node uses most memory. It may take long:
// a machine has thousands of processes, and the bundles of pods are on a disk.
func (s *Supervisor) nameLargestPod() {
	if pod, pages := podWithMost(s.proc, descendants(s.proc, s.self), ownPages); pages > 0 {
		s.log.Warn(fmt.Sprintf("pod %s uses most memory of the pods here, %d MB", pod, pages*os.Getpagesize()/1e6))
	}
}

// descendants returns the ids of the descendants of a process.
func descendants(proc, process string) (all []string) {
	parents := map[string]string{}
	for _, one := range processesIn(proc) {
		parents[one] = parentOf(proc, one)
	}
	for one, ancestor := range parents {
		for range parents { // processes come and go meanwhile, so there may be a circle
			if ancestor == process {
				all = append(all, one)
				break
			}
			ancestor = parents[ancestor]
		}
	}
	return all
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
