package egress

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

func exchangeDatagram(t testing.TB, conn net.Conn, message []byte) []byte {
	t.Helper()
	buffer := make([]byte, datagram)
	if _, err := conn.Write(message); err != nil {
		t.Fatalf("send %d bytes: %v", len(message), err)
	}
	n, err := conn.Read(buffer)
	if err != nil {
		t.Fatalf("receive answer to %d bytes: %v", len(message), err)
	}
	return buffer[:n]
}

func TestUDPEcho(t *testing.T) {
	for _, addr := range []netip.Addr{hostAddr, hostIPv6} {
		t.Run(addr.String(), func(t *testing.T) {
			l := newLab(t)
			server := listenUDP(t, on(addr), func(query []byte, _ net.Addr) []byte { return query })
			conn := l.mustDial("udp", server.String())
			for _, size := range []int{1, 0, 1472, 9000, 65480, 65507} {
				message := bytes.Repeat([]byte{byte(size)}, size)
				if answer := exchangeDatagram(t, conn, message); !bytes.Equal(answer, message) {
					t.Errorf("sent %d bytes, got %d back", size, len(answer))
				}
			}
		})
	}
}

// One socket of a pod appears as one port outside, whoever it talks to, and
// hears each from its own address.
func TestUDPPortIsStable(t *testing.T) {
	l := newLab(t)
	echoPort := func(_ []byte, from net.Addr) []byte { return []byte(from.String()) }
	servers := []netip.AddrPort{listenUDP(t, on(hostAddr), echoPort), listenUDP(t, on(hostAddr), echoPort)}
	var socket net.PacketConn
	var err error
	l.onNode(func() { socket, err = net.ListenPacket("udp4", on(podAddr)) })
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	socket.SetDeadline(time.Now().Add(20 * time.Second))
	ports := make(map[string]bool)
	for range 3 {
		for _, server := range servers {
			socket.WriteTo([]byte("?"), net.UDPAddrFromAddrPort(server))
			buffer := make([]byte, 100)
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				t.Fatal(err)
			}
			if from.String() != server.String() {
				t.Errorf("answer from %s, want %s", from, server)
			}
			ports[string(buffer[:n])] = true
		}
	}
	if len(ports) != 1 {
		t.Errorf("the socket appeared as %v", ports)
	}
	if got := l.stats().Flows; got != 2 {
		t.Errorf("%d flows, want 2", got)
	}
}

func TestUDPIdleFlowEnds(t *testing.T) {
	l := newLab(t, func(c *Config) { c.FlowIdle = 50 * time.Millisecond })
	server := listenUDP(t, on(hostAddr), func(query []byte, _ net.Addr) []byte { return query })
	conn := l.mustDial("udp", server.String())
	exchangeDatagram(t, conn, []byte("one"))
	testutil.Eventually(t, "the flow ends", func() bool { return l.stats().FlowsOpen == 0 })
	exchangeDatagram(t, conn, []byte("two"))
	if got := l.stats().Flows; got != 2 {
		t.Errorf("%d flows, want 2", got)
	}
}

func TestUDPFlowLimit(t *testing.T) {
	l := newLab(t, func(c *Config) { c.Flows = 3 })
	server := listenUDP(t, on(hostAddr), func(query []byte, _ net.Addr) []byte { return query })
	for i := range 10 {
		conn := l.mustDial("udp", server.String())
		exchangeDatagram(t, conn, []byte(fmt.Sprint(i)))
		if open := l.stats().FlowsOpen; open > 3 {
			t.Fatalf("%d flows are open", open)
		}
	}
	if got := l.stats().Overflowed; got != 7 {
		t.Errorf("%d flows were ended for others, want 7", got)
	}
}

func TestUDPFailures(t *testing.T) {
	l := newLab(t)
	closed, _ := net.ListenPacket("udp", on(hostAddr))
	closed.Close()
	for to, want := range map[string]error{
		closed.LocalAddr().String(): unix.ECONNREFUSED,
		"192.0.2.1:80":              unix.EHOSTUNREACH,
		"198.51.100.1:80":           unix.ENETUNREACH,
		"203.0.113.255:80":          unix.EHOSTUNREACH, // a broadcast address of the host
	} {
		conn := l.mustDial("udp", to)
		// Linux keeps these from a socket that does not ask for them.
		raw, _ := conn.(*net.UDPConn).SyscallConn()
		raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVERR, 1) })
		conn.Write([]byte("x"))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, want) {
			t.Errorf("send to %s: %v, want %v", to, err, want)
		}
	}
}

// ping sends an echo request from the node with its own ping socket.
func (l *lab) ping(to string, size int) error {
	var socket *icmp.PacketConn
	var err error
	l.onNode(func() {
		os.WriteFile("/proc/thread-self/net/../../sys/net/ipv4/ping_group_range", []byte("0 0"), 0)
		socket, err = icmp.ListenPacket("ip4:icmp", podAddr.String())
	})
	if err != nil {
		return err
	}
	defer socket.Close()
	socket.SetDeadline(time.Now().Add(2 * time.Second))
	payload := bytes.Repeat([]byte("p"), size)
	request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: 4711, Seq: 7, Data: payload}}
	bytesOut, err := request.Marshal(nil)
	if err != nil {
		return err
	}
	if _, err := socket.WriteTo(bytesOut, &net.IPAddr{IP: net.ParseIP(to)}); err != nil {
		return err
	}
	buffer := make([]byte, datagram)
	n, from, err := socket.ReadFrom(buffer)
	if err != nil {
		return err
	}
	reply, err := icmp.ParseMessage(1, buffer[:n])
	if err != nil {
		return err
	}
	answer, ok := reply.Body.(*icmp.Echo)
	if !ok || reply.Type != ipv4.ICMPTypeEchoReply || answer.ID != 4711 || answer.Seq != 7 || !bytes.Equal(answer.Data, payload) || from.String() != to {
		return fmt.Errorf("from %s came %v %v", from, reply.Type, reply.Code)
	}
	return nil
}

// warnings are lines of a log.
type warnings chan string

func (w warnings) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}

func TestPing(t *testing.T) {
	const groups = "/proc/sys/net/ipv4/ping_group_range"
	said := make(warnings, 4)
	l := newLab(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	})
	// A new network namespace lets nobody ping; it cannot be set back to that.
	if content, _ := os.ReadFile(groups); string(content) == "1\t0\n" {
		for range 2 {
			if err := l.ping(hostAddr.String(), 10); err == nil || !strings.Contains(err.Error(), "destination unreachable") {
				t.Errorf("ping without permission: %v", err)
			}
		}
		if l.stats().Failed != 2 {
			t.Error("the refused requests were not counted")
		}
		if len(said) != 1 || !strings.Contains(<-said, "sysctl -w net.ipv4.ping_group_range") {
			t.Error("the remedy was not said, once")
		}
	}
	if err := os.WriteFile(groups, []byte("0 0"), 0); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{hostAddr.String(), gateway.String()} {
		if err := l.ping(to, 1000); err != nil {
			t.Errorf("ping %s: %v", to, err)
		}
	}
	if err := l.ping("169.254.169.254", 10); err == nil {
		t.Error("the metadata address answers")
	}
	// Nobody lives there, and no one else may answer for it.
	if err := l.ping("203.0.113.77", 10); err == nil {
		t.Error("an address without a host answers")
	}
}
