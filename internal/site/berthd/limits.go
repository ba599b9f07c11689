package berthd

import (
	"cmp"
	"sync"
)

const (
	// maxClients bounds the open connections of all users other than root, so that root can
	// always connect. maxOfOne bounds the connections of one user, so that others can connect.
	maxClients = 128
	maxOfOne   = 16
	// maxLogins bounds the sessions of one user that are starting. Their clients, berth-session
	// and sshd with pam_berth.so, run as root, but a user can start any number of them. Many may
	// wait for the pod that the first one makes. There is no limit over all users, because one
	// user could then block the others.
	maxLogins = 64
	// maxBegun bounds the connections of one user's berth-session processes, counted before
	// their question is read. It is larger, so that a user with too many sessions gets an
	// error that explains it.
	maxBegun = 2 * maxLogins
)

// clientLimits counts the connections of users other than root.
type clientLimits struct {
	subordinates subordinates

	mu  sync.Mutex
	all int
	of  map[uint32]int
}

// enter counts a connection and reports whether it may be served. The returned user must be
// passed to leave afterwards: it is the owner of uid, if that is a subordinate number.
func (s *clientLimits) enter(uid uint32) (uint32, bool) {
	if uid == 0 {
		return 0, true
	}
	uid = s.subordinates.account(uid)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all >= maxClients || s.of[uid] >= maxOfOne {
		return uid, false
	}
	if s.of == nil {
		s.of = map[uint32]int{}
	}
	s.all++
	s.of[uid]++
	return uid, true
}

func (s *clientLimits) leave(uid uint32) {
	if uid == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all--
	if s.of[uid]--; s.of[uid] == 0 {
		delete(s.of, uid)
	}
}

// startLimit counts, by user, the sessions that are starting.
type startLimit struct {
	// most is the limit for each user; 0 stands for maxLogins.
	most int

	mu sync.Mutex
	of map[uint32]int
}

// enter counts a session and reports whether it may start. If so, the caller calls leave.
func (l *startLimit) enter(uid uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[uid] >= cmp.Or(l.most, maxLogins) {
		return false
	}
	if l.of == nil {
		l.of = map[uint32]int{}
	}
	l.of[uid]++
	return true
}

func (l *startLimit) leave(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[uid]--; l.of[uid] == 0 {
		delete(l.of, uid)
	}
}
