package sited

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// subordinates are the ranges of subuid(5): a user is all of the numbers in his, and counted as one.
type subordinates struct {
	path string

	mu     sync.Mutex
	read   time.Time
	size   int64
	ranges []subordinateRange
}

type subordinateRange struct{ first, count uint64 }

// account is who a number is counted as: the first of the range that it is in, or itself.
// Where a name service gives out the ranges (subid: in nsswitch.conf), that is each itself.
func (s *subordinates) account(uid uint32) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	for _, r := range s.ranges {
		if uint64(uid) >= r.first && uint64(uid)-r.first < r.count {
			return uint32(r.first)
		}
	}
	return uid
}

// refresh reads the file when it has changed. Of one that cannot be read the ranges are none.
func (s *subordinates) refresh() {
	info, err := os.Stat(s.path)
	if err != nil {
		s.read, s.size, s.ranges = time.Time{}, 0, nil
		return
	}
	if info.ModTime().Equal(s.read) && info.Size() == s.size {
		return
	}
	text, err := os.ReadFile(s.path)
	s.read, s.size, s.ranges = info.ModTime(), info.Size(), nil
	if err != nil {
		s.read = time.Time{}
		return
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(line), ":")
		if len(fields) != 3 {
			continue
		}
		first, err := strconv.ParseUint(fields[1], 10, 32)
		if err != nil {
			continue
		}
		// A range that begins at root's number would have all users count as root.
		if count, err := strconv.ParseUint(fields[2], 10, 32); err == nil && first > 0 {
			s.ranges = append(s.ranges, subordinateRange{first, count})
		}
	}
}
