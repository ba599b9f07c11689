package egress

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"berth.dev/berth/internal/testutil"
)

func TestPolicy(t *testing.T) {
	config := Default()
	config.Gateway, config.Cluster = gateway, []netip.Prefix{pods}
	p := newPolicy(config)
	for address, want := range map[string]verdict{
		"198.51.100.7":             forward,
		"10.43.0.1":                forward,
		"2001:db8::1":              forward,
		"10.42.255.1":              serve,
		"10.42.7.7":                refuse,
		"127.0.0.1":                refuse,
		"127.255.255.254":          refuse,
		"0.0.0.0":                  refuse,
		"0.1.2.3":                  refuse,
		"::":                       refuse,
		"::1":                      refuse,
		"::127.0.0.1":              refuse,
		"::ffff:127.0.0.1":         refuse,
		"::ffff:198.51.100.7":      refuse,
		"64:ff9b::127.0.0.1":       refuse,
		"64:ff9b::198.51.100.7":    forward,
		"2002:7f00:1::":            refuse,
		"169.254.169.254":          refuse,
		"fd00:ec2::254":            refuse,
		"fd00:ec2::23":             refuse,
		"fd00:c1::a9fe:a9fe":       refuse,
		"fe80::1":                  refuse,
		"224.0.0.1":                drop,
		"239.255.255.250":          drop,
		"255.255.255.255":          drop,
		"ff02::fb":                 drop,
		"100.100.100.200":          refuse,
		"64:ff9b::0.0.0.0":         refuse,
		"64:ff9b::169.254.169.254": refuse,
		"64:ff9b::10.42.0.9":       refuse,
	} {
		if got := p.decide(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s: verdict %d, want %d", address, got, want)
		}
		if got := config.Reaches()(netip.MustParseAddr(address)); got != (want == forward) {
			t.Errorf("pods reach %s as the host does: %v", address, got)
		}
	}
}

// A process that has only the list decides as the policy does.
func TestRefusedAsAList(t *testing.T) {
	c := Default()
	c.Cluster = []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("fd01::/64")}
	c.Refuse = append(c.Refuse, netip.MustParsePrefix("192.0.2.0/24"))
	refused, reaches := c.Refused(), c.Reaches()
	for _, text := range []string{
		"127.0.0.1", "127.9.9.9", "0.0.0.0", "::", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "10.20.3.4", "10.21.3.4", "192.0.2.9", "192.0.3.9",
		"fd01::5", "2001:db8::1", "64:ff9b::127.0.0.1", "64:ff9b::192.0.2.9", "64:ff9b::192.0.3.9", "100.100.100.200",
	} {
		to := netip.MustParseAddr(text)
		if listed := slices.ContainsFunc(refused, func(p netip.Prefix) bool { return p.Contains(to) }); listed == reaches(to) {
			t.Errorf("%s: in the list %v, reached %v", to, listed, reaches(to))
		}
	}
}

func TestConfigNamesAllProblems(t *testing.T) {
	err := Config{}.Validate()
	if joined, ok := err.(interface{ Unwrap() []error }); !ok || len(joined.Unwrap()) < 5 {
		t.Errorf("problems of an empty configuration: %v", err)
	}
}

// Services of the host that only its own users can reach stay out of reach of
// pods, whatever a pod writes into its packets.
func TestLoopbackIsUnreachable(t *testing.T) {
	l := newLab(t)
	served := make(chan string, 100)
	secret := func(conn *net.TCPConn) {
		served <- conn.LocalAddr().String()
		io.WriteString(conn, "secret")
	}
	tcp4 := listenTCP(t, "127.0.0.1:0", secret)
	listenTCP(t, netip.AddrPortFrom(netip.IPv6Loopback(), tcp4.Port()).String(), secret)
	udp4 := listenUDP(t, "127.0.0.1:0", func(query []byte, _ net.Addr) []byte { served <- "udp"; return query })
	for _, target := range []netip.AddrPort{
		netip.AddrPortFrom(hostAddr, tcp4.Port()), // an address of the host, but bound to loopback
		netip.AddrPortFrom(gateway, tcp4.Port()),
	} {
		if _, err := l.dial("tcp", target.String()); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("connect to %s: %v", target, err)
		}
		conn := l.mustDial("udp", netip.AddrPortFrom(target.Addr(), udp4.Port()).String())
		conn.Write([]byte("x"))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("datagram to %s: %v", target, err)
		}
	}
	before := l.stats().Refused
	forged := []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("0.0.0.1"),
		netip.MustParseAddr("::1"), netip.MustParseAddr("::"),
		netip.MustParseAddr("::ffff:127.0.0.1"), netip.MustParseAddr("::127.0.0.1"),
	}
	for _, to := range forged {
		from := podAddr
		if to.Is6() {
			from = podIPv6
		}
		l.forge(from, netip.AddrPortFrom(to, tcp4.Port()), header.TCPProtocolNumber)
		l.forge(from, netip.AddrPortFrom(to, udp4.Port()), header.UDPProtocolNumber)
	}
	testutil.Eventually(t, "forged packets are refused", func() bool { return l.stats().Refused == before+uint64(2*len(forged)) })
	if s := l.stats(); s.Flows != 1 || s.ConnectionsOpen != 0 {
		t.Errorf("flows were opened: %+v", s)
	}
	select {
	case where := <-served:
		t.Errorf("%s was reached", where)
	default:
	}
}

// forge sends the packet that opens a flow past the node's routing, as a pod
// with raw sockets could.
func (l *lab) forge(source netip.Addr, to netip.AddrPort, protocol tcpip.TransportProtocolNumber) {
	l.forgeAll(source, []uint16{999}, to, protocol)
}

// forgeAll forges a packet from each of the ports.
func (l *lab) forgeAll(source netip.Addr, ports []uint16, to netip.AddrPort, protocol tcpip.TransportProtocolNumber) {
	l.onNode(func() {
		device, err := netlink.LinkByName("out0")
		if err != nil {
			l.Error(err)
			return
		}
		link := unix.SockaddrLinklayer{Protocol: 0x0008, Ifindex: device.Attrs().Index} // ETH_P_IP in network order
		if to.Addr().Is6() {
			link.Protocol = 0xdd86
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			l.Error(err)
			return
		}
		defer unix.Close(fd)
		for _, port := range ports {
			if err := unix.Sendto(fd, forged(netip.AddrPortFrom(source, port), to, protocol), 0, &link); err != nil {
				l.Errorf("forge packet to %s: %v", to, err)
			}
		}
	})
}

// forged returns the packet that opens a flow.
func forged(from, to netip.AddrPort, protocol tcpip.TransportProtocolNumber) []byte {
	source, target := stackAddress(from.Addr()), stackAddress(to.Addr())
	transport := make([]byte, header.TCPMinimumSize)
	sum := header.PseudoHeaderChecksum(protocol, source, target, uint16(len(transport)))
	if protocol == header.TCPProtocolNumber {
		segment := header.TCP(transport)
		segment.Encode(&header.TCPFields{SrcPort: from.Port(), DstPort: to.Port(), DataOffset: header.TCPMinimumSize, Flags: header.TCPFlagSyn, WindowSize: 1000})
		segment.SetChecksum(^segment.CalculateChecksum(sum))
	} else {
		udp := header.UDP(transport)
		udp.Encode(&header.UDPFields{SrcPort: from.Port(), DstPort: to.Port(), Length: uint16(len(transport))})
		udp.SetChecksum(^udp.CalculateChecksum(checksum.Checksum(transport[header.UDPMinimumSize:], sum)))
	}
	if to.Addr().Is4() {
		packet := append(make([]byte, header.IPv4MinimumSize), transport...)
		ip := header.IPv4(packet)
		ip.Encode(&header.IPv4Fields{TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(protocol), SrcAddr: source, DstAddr: target})
		ip.SetChecksum(^ip.CalculateChecksum())
		return packet
	}
	packet := append(make([]byte, header.IPv6MinimumSize), transport...)
	header.IPv6(packet).Encode(&header.IPv6Fields{PayloadLength: uint16(len(transport)), TransportProtocol: protocol, HopLimit: 64, SrcAddr: source, DstAddr: target})
	return packet
}

func TestRefusedRanges(t *testing.T) {
	l := newLab(t)
	refused := []string{"169.254.169.254:80", "10.42.77.7:80", "100.100.100.200:80", "[fd00:ec2::254]:80"}
	for _, target := range refused {
		if _, err := l.dial("tcp", target); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("connect to %s: %v", target, err)
		}
		conn := l.mustDial("udp", target)
		conn.Write([]byte("x"))
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("datagram to %s: %v", target, err)
		}
	}
	if got := l.stats().Refused; got != uint64(2*len(refused)) {
		t.Errorf("%d flows counted as refused, want %d", got, 2*len(refused))
	}
}
