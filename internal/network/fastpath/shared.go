package fastpath

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// shared holds what every part of a Switch uses.
type shared struct {
	log      *slog.Logger
	checks   checks
	reactor  *reactor
	state    *state
	inside   *inside
	counters counters
	// hostNetwork is the cookie of the host's network namespace.
	hostNetwork uint64
	// losesAnswers is the result of linux.MayLoseAnswers.
	losesAnswers bool
	// threads has locks for calling threads, chosen by number (trap.exclude).
	threads [256]sync.Mutex
}

// switched reports whether a socket belongs to the host's network namespace.
func (s *shared) switched(socket int) bool {
	cookie, err := sock.NetworkCookie(socket)
	return err != nil || cookie == s.hostNetwork
}

// shortage is the pause after a connection could not be accepted.
const shortage = 100 * time.Millisecond

// acceptAll accepts all connections in a listener's queue, and arms the reactor for the
// next one. When descriptors or memory are short, it pauses first: the reactor would
// report the connection in the queue again at once.
func (s *shared) acceptAll(listener int, token uint64, take func(fd int)) {
	again := func() { _ = s.reactor.again(listener, token, unix.EPOLLIN) }
	for {
		fd, _, errno := sock.Accept(listener, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch errno {
		case 0:
			take(fd)
		case unix.EINTR, unix.ECONNABORTED:
		case unix.EAGAIN:
			again()
			return
		default:
			s.counters.add(countShortage)
			time.AfterFunc(shortage, again)
			return
		}
	}
}
