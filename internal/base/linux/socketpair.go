package linux

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// PacketPair returns the two ends of a connected SOCK_SEQPACKET pair: whole
// messages, descriptors beside them, and end-of-file when the other end's last
// holder is gone. The first end is ready for use, the second is to be
// inherited by a child.
func PacketPair(name string) (*net.UnixConn, *os.File, error) {
	own, other, err := PacketFiles(name)
	if err != nil {
		return nil, nil, err
	}
	defer own.Close()
	conn, err := PacketConn(own)
	if err != nil {
		other.Close()
		return nil, nil, err
	}
	return conn, other, nil
}

// PacketFiles returns both ends of such a pair for children to inherit.
func PacketFiles(name string) (one, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair %s: %w", name, err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
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

// ListenIn listens on a new socket file in a directory; only its owner can open
// it. A socket address holds 107 bytes, which a path may exceed, so the
// directory is named by a descriptor. The file stays when the listener is
// closed.
func ListenIn(directory, name string) (listener *net.UnixListener, err error) {
	err = within(directory, name, func(path string) error {
		if listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"}); err != nil {
			return err
		}
		listener.SetUnlinkOnClose(false)
		return os.Chmod(path, 0o600)
	})
	return listener, err
}

// DialIn connects to a socket file in a directory.
func DialIn(ctx context.Context, directory, name string) (conn net.Conn, err error) {
	err = within(directory, name, func(path string) error {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", path)
		return err
	})
	return conn, err
}

func within(directory, name string, do func(path string) error) error {
	dir, err := os.Open(directory)
	if err != nil {
		return fmt.Errorf("use socket %s: %w", filepath.Join(directory, name), err)
	}
	defer dir.Close()
	if err := do(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name)); err != nil {
		return fmt.Errorf("use socket %s: %w", filepath.Join(directory, name), err)
	}
	return nil
}
