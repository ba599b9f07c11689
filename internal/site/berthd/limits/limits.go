// Package limits bounds how many connections to berthd, and how many starting sessions, a user
// may have. It does not read what a client asks.
package limits

import (
	"cmp"
	"sync"
)

const (
	// maxClients bounds the open connections of all users other than root, so that root can
	// always connect. maxOfOne bounds the connections of one user, so that others can connect.
	maxClients = 128
	maxOfOne   = 16
	// MaxStarting bounds the sessions of one user that are starting. Their clients, berth-session
	// and sshd with pam_berth.so, run as root, but a user can start any number of them. Many may
	// wait for the pod that the first one makes. There is no limit over all users, because one
	// user could then block the others.
	MaxStarting = 64
	// MaxBegun bounds the connections of one user's berth-session processes, counted before
	// their question is read. It is larger, so that a user with too many sessions gets an
	// error that explains it.
	MaxBegun = 2 * MaxStarting
)

// Clients counts the connections of users other than root.
type Clients struct {
	subordinates subordinates

	mu  sync.Mutex
	all int
	of  map[uint32]int
}

// NewClients returns limits that count subordinate numbers of this host for their user.
func NewClients() *Clients {
	return &Clients{subordinates: subordinates{path: "/etc/subuid", number: userNumber}}
}

// Enter counts a connection and reports whether it may be served. The returned user must be
// passed to Leave afterwards: it is the owner of uid, if that is a subordinate number.
func (s *Clients) Enter(uid uint32) (uint32, bool) {
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

// Leave undoes one call of Enter.
func (s *Clients) Leave(uid uint32) {
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

// Starting counts, by user, the sessions that are starting.
type Starting struct {
	// Most is the limit for each user; 0 stands for MaxStarting.
	Most int

	mu sync.Mutex
	of map[uint32]int
}

// Enter counts a session and reports whether it may start. If so, the caller calls Leave.
func (l *Starting) Enter(uid uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[uid] >= cmp.Or(l.Most, MaxStarting) {
		return false
	}
	if l.of == nil {
		l.of = map[uint32]int{}
	}
	l.of[uid]++
	return true
}

// Leave undoes one call of Enter.
func (l *Starting) Leave(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of[uid]--; l.of[uid] == 0 {
		delete(l.of, uid)
	}
}
