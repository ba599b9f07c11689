package overlay

import (
	"crypto/sha256"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"berth.dev/berth/internal/testutil"
)

// dial connects from a node. A numeric address is dialled on the calling
// thread, and a socket stays where it was made.
func (m *member) dial(t testing.TB, network, to string) net.Conn {
	t.Helper()
	var conn net.Conn
	var err error
	m.node.do(func() { conn, err = net.DialTimeout(network, to, 20*time.Second) })
	if err != nil {
		t.Fatalf("dial %s %s: %v", network, to, err)
	}
	conn.SetDeadline(time.Now().Add(60 * time.Second))
	t.Cleanup(func() { conn.Close() })
	return conn
}

// serveTCP answers each connection to the node with the checksum of all that
// was sent to it.
func (m *member) serveTCP(t testing.TB, address netip.Addr) string {
	t.Helper()
	var listener net.Listener
	m.node.try(t, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(address, 0).String())
		return err
	})
	testutil.Serve(t, listener, func(conn net.Conn) {
		hash := sha256.New()
		if _, err := io.Copy(hash, conn); err == nil {
			conn.Write(hash.Sum(nil))
		}
	})
	return listener.Addr().String()
}

// serveUDP answers each datagram to the node with itself.
func (m *member) serveUDP(t testing.TB, address netip.Addr) string {
	t.Helper()
	var socket net.PacketConn
	m.node.try(t, func() (err error) {
		socket, err = net.ListenPacket("udp", netip.AddrPortFrom(address, 0).String())
		return err
	})
	t.Cleanup(func() { socket.Close() })
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			socket.WriteTo(buffer[:n], from)
		}
	}()
	return socket.LocalAddr().String()
}
