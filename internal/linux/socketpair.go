package linux

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// PacketPair returns the two ends of a connected SOCK_SEQPACKET pair: whole
// messages, descriptors beside them, and end-of-file when the other end's last
// holder is gone. The first end is ready for use, the second is to be
// inherited by a child.
func PacketPair(name string) (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair %s: %w", name, err)
	}
	own := os.NewFile(uintptr(fds[0]), name)
	defer own.Close()
	other := os.NewFile(uintptr(fds[1]), name)
	conn, err := PacketConn(own)
	if err != nil {
		other.Close()
		return nil, nil, err
	}
	return conn, other, nil
}

// PacketConn returns the connection behind an inherited end of a PacketPair.
// The file may be closed afterwards.
func PacketConn(file *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, fmt.Errorf("use socket %s: %w", file.Name(), err)
	}
	return conn.(*net.UnixConn), nil
}
