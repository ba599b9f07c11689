package fastpath

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// Cut ends switched connections of this node's pods that the policy does not permit any
// more, and returns their number. Call it after each change of the policy. It searches all
// processes of the user, because the Switch keeps no descriptors of switched sockets.
// With them, connections that the pods have closed would stay open.
func (s *Switch) Cut() (int, error) {
	s.inbound.forbid()
	forbidden := map[string]uint64{} // cookies, by the name of the socket in /proc
	var problems error
	for _, r := range s.sockets.switchedRecords() {
		if s.control.permitsRecord(&r) {
			continue
		}
		inode, err := s.sockets.inode(&r)
		problems = errors.Join(problems, err)
		if inode != 0 {
			forbidden[fmt.Sprintf("socket:[%d]", inode)] = r.cookie
		}
	}
	if len(forbidden) == 0 {
		return 0, problems
	}
	processes, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for connections that are not permitted: %w", err)
	}
	cut := map[uint64]bool{}
	for _, process := range processes {
		if pid, err := strconv.Atoi(process.Name()); err == nil {
			problems = errors.Join(problems, s.cutIn(pid, forbidden, cut))
		}
	}
	return len(cut), problems
}

// cutIn ends the connections of one process. It ignores processes that have ended or
// that it may not inspect.
func (s *Switch) cutIn(pid int, forbidden map[string]uint64, cut map[uint64]bool) error {
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(process)
	lines, err := socketNames(pid)
	if errors.Is(err, unix.EACCES) {
		lines, err = s.inside.socketNames(process)
	}
	if err != nil {
		return nil
	}
	var problems error
	for line := range bytes.Lines(lines) {
		text, name, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" "))
		cookie, found := forbidden[string(name)]
		number, err := strconv.Atoi(string(text))
		if err != nil || !found {
			continue
		}
		switch err := resetIn(process, number, cookie); {
		case err == nil:
			cut[cookie] = true
		case !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.EBADF):
			problems = errors.Join(problems, fmt.Errorf("cut a connection of process %d: %w", pid, err))
		}
	}
	return problems
}

// resetIn resets the connection number of another process. It returns EBADF if the
// descriptor has another cookie.
func resetIn(process, number int, cookie uint64) error {
	fd, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	got, err := sock.Cookie(fd)
	if err != nil || got != cookie {
		return unix.EBADF // the process has closed the connection
	}
	return resetConn(fd)
}

// resetConn resets a connection, so that both programs receive an error (ECONNRESET, or
// EPIPE for a waiting thread). After shutdown they would read a regular end of the
// stream. The pod keeps an unconnected socket of the host, as after a reset by its peer,
// and the Switch still decides about connect and listen on it.
func resetConn(socket int) error {
	err := sock.Disconnect(socket)
	if errors.Is(err, unix.EBUSY) {
		// Linux 6.4 and some earlier versions refuse to disconnect while a thread reads.
		err = unix.Shutdown(socket, unix.SHUT_RDWR)
	}
	if errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}
