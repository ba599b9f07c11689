package limits

import (
	"os"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"
)

// subordinates holds the ranges of subuid(5). All numbers in a user's ranges count as
// that user.
type subordinates struct {
	path string
	// number returns the number of the user with a name.
	number func(name string) (uint32, bool)

	mu     sync.Mutex
	read   time.Time
	size   int64
	ranges []subordinateRange
}

type subordinateRange struct {
	first, count uint64
	// owner is a name or a number, and ownFirst the start of its first range.
	owner    string
	ownFirst uint32
}

// account returns the user that a number counts as: the owner of its range, or the
// number itself. If this host's files do not have the owner, it returns the start of
// the owner's first range. With ranges from a name service (subid: in nsswitch.conf),
// each number counts as itself.
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

// owner returns the owner of a range. It never returns root, whose limits no user may
// have.
func (s *subordinates) owner(r subordinateRange) uint32 {
	if number, err := strconv.ParseUint(r.owner, 10, 32); err == nil && number > 0 {
		return uint32(number)
	}
	if number, known := s.number(r.owner); known && number > 0 {
		return number
	}
	return r.ownFirst
}

// userNumber looks a user up in /etc/passwd. Name services would require another
// program.
func userNumber(name string) (uint32, bool) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, false
	}
	number, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(number), err == nil
}

// refresh reads the file if it has changed. If the file cannot be read, there are no
// ranges.
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
		// A range that begins at root's number would make all users count as root.
		if count, err := strconv.ParseUint(fields[2], 10, 32); err == nil && first > 0 {
			owner := fields[0]
			if _, known := firsts[owner]; !known {
				firsts[owner] = uint32(first)
			}
			s.ranges = append(s.ranges, subordinateRange{first, count, owner, firsts[owner]})
		}
	}
}
