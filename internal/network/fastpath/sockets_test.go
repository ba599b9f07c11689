package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

func newSocket(family, flags int) (int, error) {
	return unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|flags, 0)
}

// isSwitched reports whether a socket is in another namespace than a new one.
func isSwitched(fd int) bool {
	fresh, err := newSocket(unix.AF_INET, 0)
	if err != nil {
		panic(err)
	}
	defer unix.Close(fresh)
	a, err1 := sock.NetworkCookie(fd)
	b, err2 := sock.NetworkCookie(fresh)
	if err := errors.Join(err1, err2); err != nil {
		panic(err)
	}
	return a != b
}

// describe prints the ends of a connection, and which network it uses.
func describe(fd int) (string, error) {
	local, err1 := unix.Getsockname(fd)
	peer, err2 := unix.Getpeername(fd)
	if err := errors.Join(err1, err2); err != nil {
		return "", err
	}
	network := "overlay"
	if isSwitched(fd) {
		network = "switched"
	}
	return fmt.Sprintf("%s %s %s", show(local), show(peer), network), nil
}

func show(address unix.Sockaddr) string {
	switch a := address.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)).String()
	}
	return fmt.Sprintf("%T", address)
}

// familyOf returns the family of a socket for an address.
func familyOf(address string) int {
	if strings.HasPrefix(address, "[") {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func sockaddr(text string, family int) unix.Sockaddr {
	a := netip.MustParseAddrPort(text)
	if family == unix.AF_INET6 {
		link, _ := strconv.Atoi(a.Addr().Zone())
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port()), ZoneId: uint32(link)}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

func await(fd int, events int16) error {
	p := []unix.PollFd{{Fd: int32(fd), Events: events}}
	for {
		n, err := unix.Poll(p, int(labTimeout.Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("poll for %#x: %w", events, unix.ETIMEDOUT)
		default:
			return nil
		}
	}
}

func epollWith(fd int, events uint32) (int, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return -1, err
	}
	return epoll, unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd), Pad: 77})
}

func awaitEpoll(epoll, fd int, events uint32) error {
	var got [4]unix.EpollEvent
	for {
		n, err := unix.EpollWait(epoll, got[:], int(labTimeout.Milliseconds()))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("epoll for %#x: %w", events, unix.ETIMEDOUT)
		case n != 1 || got[0].Fd != int32(fd) || got[0].Pad != 77:
			return fmt.Errorf("epoll returns %+v", got[:n])
		case got[0].Events&events != 0:
			return nil
		}
	}
}

func awaitSelect(fd int, write bool) error {
	var set unix.FdSet
	set.Set(fd)
	limit := unix.NsecToTimeval(labTimeout.Nanoseconds())
	reads, writes := &set, (*unix.FdSet)(nil)
	if write {
		reads, writes = nil, &set
	}
	n, err := unix.Select(fd+1, reads, writes, nil, &limit)
	if err == nil && n == 0 {
		err = unix.ETIMEDOUT
	}
	return err
}

// failed expects a call to have failed in one of some ways.
func failed(err error, ways ...unix.Errno) error {
	for _, way := range ways {
		if errors.Is(err, way) {
			return nil
		}
	}
	if err == nil {
		return fmt.Errorf("has succeeded, not failed with %v", ways)
	}
	return fmt.Errorf("%w, not %v", err, ways)
}

// returned expects a call to have succeeded with a number.
func returned(got int, err error, want int) error {
	if err == nil && got != want {
		err = fmt.Errorf("%d, not %d", got, want)
	}
	return err
}
