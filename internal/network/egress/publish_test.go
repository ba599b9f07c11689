package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// published opens a port of the host for one of the node.
func published(t *testing.T, address string, to netip.AddrPort) (netip.AddrPort, func(*Config)) {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return listener.Addr().(*net.TCPAddr).AddrPort(), func(c *Config) {
		c.Publish = append(c.Publish, Published{Listener: listener.(*net.TCPListener), To: to})
	}
}

// serveOnNode answers each connection to the node with the client's address and
// what the client has said.
func serveOnNode(l *lab, address netip.AddrPort) {
	l.Helper()
	var listener net.Listener
	var err error
	l.onNode(func() { listener, err = net.Listen("tcp", address.String()) })
	if err != nil {
		l.Fatal(err)
	}
	testutil.Serve(l, listener, func(conn net.Conn) {
		request, _ := io.ReadAll(conn)
		from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		io.WriteString(conn, from.String()+" says "+string(request))
	})
}

// TestPublish: a port of the host leads to one of the node, which sees the
// client, and the gateway instead of a client that it could not answer.
func TestPublish(t *testing.T) {
	service := netip.AddrPortFrom(podAddr, 8080)
	open, onAddress := published(t, on(hostAddr), service)
	local, onLoopback := published(t, "127.0.0.1:0", service)
	l := newLab(t, onAddress, onLoopback)
	serveOnNode(l, service)
	long := strings.Repeat("hello", 100_000)
	for address, client := range map[netip.AddrPort]netip.Addr{open: hostAddr, local: gateway} {
		conn, err := net.Dial("tcp", address.String())
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(conn, long)
		conn.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(conn)
		conn.Close()
		if want := client.String() + " says " + long; err != nil || string(answer) != want {
			t.Errorf("through %v: read %.40q of %d bytes, %v; want %.40q", address, answer, len(answer), err, want)
		}
	}
	testutil.Eventually(t, "connections end", func() bool { return l.stats().ConnectionsOpen == 0 })
}

// TestPublishNothing: a client receives a reset where nothing listens on the node.
func TestPublishNothing(t *testing.T) {
	address, option := published(t, on(hostAddr), netip.AddrPortFrom(podAddr, 8081))
	newLab(t, option)
	conn, err := net.Dial("tcp", address.String())
	if err == nil {
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = conn.Read(make([]byte, 1))
		conn.Close()
	}
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
}
