package berthd

import (
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
)

// subordinates are the ranges of subuid(5): a user is all of the numbers in his, and counted as one.
type subordinates struct {
	path string
	// number is that of a user by name.
	number func(name string) (uint32, bool)

	mu     sync.Mutex
	read   time.Time
	size   int64
	ranges []subordinateRange
}

type subordinateRange struct {
	first, count uint64
	// owner is a name or a number, and ownFirst what his first range begins with.
	owner    string
	ownFirst uint32
}

// account is who a number is counted as: the owner of the range that it is in, or itself. An owner
// of whom this host's files know no number is counted as the first of his ranges.
// Where a name service gives out the ranges (subid: in nsswitch.conf), that is each itself.
func (s *subordinates) account(uid uint32) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	for _, r := range s.ranges {
		if uint64(uid) >= r.first && uint64(uid)-r.first < r.count {
			return s.owner(r)
		}
	}
	return uid
}

// owner is who has a range. Root's own limits are nobody's to have.
func (s *subordinates) owner(r subordinateRange) uint32 {
	if number, err := strconv.ParseUint(r.owner, 10, 32); err == nil && number > 0 {
		return uint32(number)
	}
	if number, known := s.number(r.owner); known && number > 0 {
		return number
	}
	return r.ownFirst
}

// userNumber is what /etc/passwd says. To ask a name service, a program would have to be started.
func userNumber(name string) (uint32, bool) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, false
	}
	number, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(number), err == nil
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
	firsts := map[string]uint32{}
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
			owner := fields[0]
			if _, known := firsts[owner]; !known {
				firsts[owner] = uint32(first)
			}
			s.ranges = append(s.ranges, subordinateRange{first, count, owner, firsts[owner]})
		}
	}
}
