// Package loopback listens on the host's loopback for one user. A login host has
// many users, and a port on its loopback is open to all of them. So the package
// looks up the owner of every connection and rejects other users.
//
// It does not decide what is served to accepted connections.
package loopback

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"berth.dev/berth/internal/base/linux"
)

// errOthers is the cause of a refusal: the connection is not this user's.
var errOthers = errors.New("the connection belongs to another user")

// Listener accepts connections of this user's processes only.
type Listener struct {
	*net.TCPListener
	// Refused, if not nil, is called with the reason for each refused
	// connection.
	Refused func(error)
}

// Listen opens a port at an address of the loopback; port 0 is one that the
// kernel chooses.
func Listen(address netip.AddrPort) (*Listener, error) {
	if !address.Addr().IsLoopback() {
		return nil, fmt.Errorf("listen on %s: it is not an address of the loopback, and only there can the owner of a connection be found out", address.Addr())
	}
	listener, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(address))
	if err != nil {
		return nil, fmt.Errorf("listen for only this user: %w", err)
	}
	return &Listener{TCPListener: listener}, nil
}

// Port returns the port of the listener.
func (l *Listener) Port() uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

// Accept returns the next connection of this user.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.AcceptTCP()
		if err != nil {
			return nil, err
		}
		if err = checkOwner(conn); err == nil {
			return conn, nil
		}
		_ = conn.SetLinger(0) // a reset, so that the client does not take the connection for accepted
		conn.Close()
		if l.Refused != nil {
			l.Refused(err)
		}
	}
}

// checkOwner returns an error unless the other end of a connection belongs to
// this user.
func checkOwner(conn *net.TCPConn) error {
	client := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	server := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	uid, err := owner(client, server)
	if err != nil {
		return fmt.Errorf("find out whose connection it is (from %s): %w", client, err)
	}
	if uid != os.Getuid() {
		return fmt.Errorf("%w (from %s, uid %d)", errOthers, client, uid)
	}
	return nil
}

// owner returns the uid of the socket between two addresses, seen from the
// first. It asks by socket diagnostics, because the table in /proc takes longer
// the more sockets the host has, and others could keep Accept busy with it. It
// reads the table only if the diagnostics fail.
func owner(local, remote netip.AddrPort) (int, error) {
	local, remote = netip.AddrPortFrom(local.Addr().Unmap(), local.Port()), netip.AddrPortFrom(remote.Addr().Unmap(), remote.Port())
	diag, err := linux.OpenSocketDiag()
	if err == nil {
		defer diag.Close()
		uid, open, err := diag.Owner(local, remote)
		if err == nil && !open {
			return 0, errClosed
		}
		if err == nil {
			return int(uid), nil
		}
	}
	table := "/proc/thread-self/net/tcp"
	if !local.Addr().Is4() {
		table += "6"
	}
	return ownerInTable(table, local, remote)
}

// errClosed means that no process has the other end of a connection.
var errClosed = errors.New("its owner has closed it already")

// Columns of /proc/net/tcp, see the kernel's Documentation/networking/proc_net_tcp.rst.
const (
	columnLocal  = 1
	columnRemote = 2
	columnUID    = 7
	columnInode  = 9
)

// ownerInTable looks a socket up in the kernel's table. A socket whose
// processes have all closed it has no owner; the kernel reports uid 0 for it.
func ownerInTable(table string, local, remote netip.AddrPort) (int, error) {
	file, err := os.Open(table)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	wantLocal, wantRemote := kernelAddress(local), kernelAddress(remote)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) <= columnInode || fields[columnLocal] != wantLocal || fields[columnRemote] != wantRemote {
			continue
		}
		if fields[columnInode] == "0" {
			return 0, errClosed
		}
		return strconv.Atoi(fields[columnUID])
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return 0, errors.New("it is not among the sockets of this host")
}

// kernelAddress formats an address like the kernel's table: words of 32 bits in
// the processor's byte order, then the port.
func kernelAddress(address netip.AddrPort) string {
	var text strings.Builder
	bytes := address.Addr().Unmap().AsSlice()
	for word := 0; word < len(bytes); word += 4 {
		fmt.Fprintf(&text, "%08X", binary.NativeEndian.Uint32(bytes[word:]))
	}
	fmt.Fprintf(&text, ":%04X", address.Port())
	return text.String()
}
