// Command frames sends packets that nobody should receive, and prints the received
// ones: raw Ethernet frames and forged tunnel packets, each with a label in it.
//
//	frames listen INTERFACE            prints the label of each frame that has one
//	frames send INTERFACE LABEL=FRAME...
//	frames udp SOURCE-PORT ADDRESS:PORT LABEL=FRAME...
//	frames forge SOURCE ADDRESS:PORT LABEL
//
// FRAME is KIND,DST-MAC,SRC-MAC,SRC-IP,DST-IP. KIND is ip, arp, vlan, ip6 (without
// addresses), odd, udp6, ra (a router advertisement), na:TARGET (a neighbour
// advertisement), or vxlan:VNI:NODE:INNER-DST-MAC for a tunnel packet inside of an IP
// packet.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// mark begins the payload of every packet. The label and a semicolon follow.
const mark = "berth-frame:"

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "frames:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "listen":
		return listen(args[1])
	case len(args) > 2 && args[0] == "send":
		return send(args[1], args[2:])
	case len(args) > 3 && args[0] == "udp":
		return sendUDP(args[1], args[2], args[3:])
	case len(args) == 4 && args[0] == "forge":
		return forge(args[1], args[2], args[3])
	}
	return errors.New("usage: see the source")
}

// open opens a raw socket on an interface.
func open(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	all := htons(syscall.ETH_P_ALL)
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, int(all))
	if err != nil {
		return 0, err
	}
	return fd, syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: all, Ifindex: i.Index})
}

// htons returns n in network byte order on a little-endian machine.
func htons(n uint16) uint16 { return n<<8 | n>>8 }

// listen prints the label of each frame that arrives at an interface. It returns only
// after an error.
func listen(name string) error {
	fd, err := open(name)
	if err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	fmt.Fprintln(out, "listening")
	buffer := make([]byte, 65536)
	for {
		if err := out.Flush(); err != nil {
			return err
		}
		n, from, err := syscall.Recvfrom(fd, buffer, 0)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return err
		}
		if link, ok := from.(*syscall.SockaddrLinklayer); ok && link.Pkttype == syscall.PACKET_OUTGOING {
			continue
		}
		if _, after, found := bytes.Cut(buffer[:n], []byte(mark)); found {
			label, _, _ := bytes.Cut(after, []byte(";"))
			fmt.Fprintf(out, "received %s\n", label)
		}
	}
}

func send(name string, frames []string) error {
	fd, err := open(name)
	if err != nil {
		return err
	}
	for _, text := range frames {
		frame, err := build(text)
		if err != nil {
			return err
		}
		if err := syscall.Sendto(fd, frame, 0, &syscall.SockaddrLinklayer{Ifindex: indexOf(name), Halen: 6}); err != nil {
			return fmt.Errorf("send %s: %w", text, err)
		}
	}
	return nil
}

// indexOf returns the index of an interface, or 0 if there is none of that name.
func indexOf(name string) int {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return i.Index
}

// sendUDP sends tunnel packets from a UDP port, which needs no privilege. Each carries a
// frame.
func sendUDP(source, to string, frames []string) error {
	port, err := strconv.Atoi(source)
	if err != nil {
		return err
	}
	address, err := net.ResolveUDPAddr("udp4", to)
	if err != nil {
		return err
	}
	conn, err := net.DialUDP("udp4", &net.UDPAddr{Port: port}, address)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, text := range frames {
		label, text, _ := strings.Cut(text, "=")
		kind, inner, _ := strings.Cut(text, ",")
		fields := strings.Split(kind, ":")
		if len(fields) != 2 {
			return fmt.Errorf("kind %s: want vxlan:VNI", kind)
		}
		frame, err := build(label + "=ip," + inner)
		if err != nil {
			return err
		}
		packet, err := vxlan(fields[1], frame)
		if err != nil {
			return err
		}
		if _, err := conn.Write(packet); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
	}
	return nil
}

// forge sends by UDP from an IPv6 address that the host need not have, which needs no
// privilege. The host may refuse to send it.
func forge(source, to, label string) error {
	const freebind = 78 // IPV6_FREEBIND of linux/in6.h
	from, err := netip.ParseAddr(source)
	if err != nil {
		return err
	}
	there, err := netip.ParseAddrPort(to)
	if err != nil {
		return err
	}
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_IPV6, freebind, 1); err != nil {
		return err
	}
	if err := syscall.Bind(fd, &syscall.SockaddrInet6{Addr: from.As16()}); err != nil {
		return fmt.Errorf("bind %s: %w", source, err)
	}
	err = syscall.Sendto(fd, []byte(mark+label+";"), 0, &syscall.SockaddrInet6{Addr: there.Addr().As16(), Port: int(there.Port())})
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EACCES) {
		return nil
	}
	return err
}

// vxlan returns a frame behind a VXLAN header (RFC 7348).
func vxlan(vni string, frame []byte) ([]byte, error) {
	n, err := strconv.ParseUint(vni, 10, 24)
	if err != nil {
		return nil, err
	}
	header := make([]byte, 8)
	header[0] = 0x08
	binary.BigEndian.PutUint32(header[4:], uint32(n)<<8)
	return append(header, frame...), nil
}

// build makes a frame from its description.
func build(text string) ([]byte, error) {
	label, text, _ := strings.Cut(text, "=")
	fields := strings.Split(text, ",")
	if len(fields) != 5 {
		return nil, fmt.Errorf("frame %s: want five fields", text)
	}
	to, err1 := net.ParseMAC(fields[1])
	from, err2 := net.ParseMAC(fields[2])
	source, err3 := netip.ParseAddr(fields[3])
	destination, err4 := netip.ParseAddr(fields[4])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	payload := []byte(mark + label + ";")
	kind, rest, _ := strings.Cut(fields[0], ":")
	frame := append(append([]byte{}, to...), from...)
	switch kind {
	case "ip":
		return append(append(frame, 0x08, 0x00), ip(source, destination, 5000, payload)...), nil
	case "vlan":
		return append(append(frame, 0x81, 0x00, 0x00, 0x05, 0x08, 0x00), ip(source, destination, 5000, payload)...), nil
	case "vxlan":
		vni, inner, _ := strings.Cut(rest, ":")
		mac, bob, _ := strings.Cut(inner, "/")
		hidden, err := build(label + "=ip," + mac + "," + fields[2] + "," + bob + "," + bob)
		if err != nil {
			return nil, err
		}
		packet, err := vxlan(vni, hidden)
		if err != nil {
			return nil, err
		}
		return append(append(frame, 0x08, 0x00), ip(source, destination, 289, packet)...), nil
	case "arp":
		arp := []byte{0, 1, 8, 0, 6, 4, 0, 1}
		arp = append(arp, from...)
		arp = append(arp, source.AsSlice()...)
		arp = append(arp, to...)
		arp = append(arp, destination.AsSlice()...)
		return append(append(append(frame, 0x08, 0x06), arp...), payload...), nil
	case "ip6":
		packet := append([]byte{0x60, 0, 0, 0, 0, byte(len(payload)), 59, 64}, make([]byte, 32)...)
		return append(append(append(frame, 0x86, 0xdd), packet...), payload...), nil
	case "udp6":
		udp := append([]byte{700 >> 8, 700 & 0xff, 5000 >> 8, 5000 & 0xff, 0, byte(8 + len(payload)), 0, 0}, payload...)
		return append(append(frame, 0x86, 0xdd), ip6(source, destination, 17, 6, udp)...), nil
	case "ra":
		router := append([]byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}, option(payload)...)
		return append(append(frame, 0x86, 0xdd), ip6(source, destination, 58, 2, router)...), nil
	case "na":
		target, err := netip.ParseAddr(rest)
		if err != nil {
			return nil, err
		}
		claimed := target.As16()
		neighbour := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, claimed[:]...)
		neighbour = append(append(append(neighbour, 2, 1), from...), option(payload)...)
		return append(append(frame, 0x86, 0xdd), ip6(source, destination, 58, 2, neighbour)...), nil
	case "odd":
		return append(append(frame, 0x88, 0xb5), payload...), nil
	}
	return nil, fmt.Errorf("frame %s: unknown kind", text)
}

// option returns a payload as a neighbour discovery option. Its type, 253, is reserved for
// experiments (RFC 4727).
func option(payload []byte) []byte {
	length := (2 + len(payload) + 7) / 8
	all := make([]byte, 8*length)
	all[0], all[1] = 253, byte(length)
	copy(all[2:], payload)
	return all
}

// ip6 returns an IPv6 packet. It writes a valid checksum at the offset at of the body, so
// that only rules can keep the packet from arriving.
func ip6(source, destination netip.Addr, protocol byte, at int, body []byte) []byte {
	from, to := source.As16(), destination.As16()
	p := append([]byte{0x60, 0, 0, 0, 0, byte(len(body)), protocol, 255}, from[:]...)
	p = append(append(p, to[:]...), body...)
	summed := append(append([]byte{}, p[8:40]...), 0, 0, 0, byte(len(body)), 0, 0, 0, protocol)
	// Pad a body of odd length.
	summed = append(append(summed, body...), 0)
	var sum uint32
	for i := 0; i+1 < len(summed); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(summed[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(p[40+at:], ^uint16(sum))
	return p
}

// ip returns an IPv4 packet with a UDP datagram from port 700, without a UDP checksum.
func ip(source, destination netip.Addr, port uint16, payload []byte) []byte {
	p := make([]byte, 28, 28+len(payload))
	p[0], p[8], p[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(p[2:], uint16(28+len(payload)))
	copy(p[12:], source.AsSlice())
	copy(p[16:], destination.AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(p[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(p[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(p[20:], 700)
	binary.BigEndian.PutUint16(p[22:], port)
	binary.BigEndian.PutUint16(p[24:], uint16(8+len(payload)))
	return append(p, payload...)
}
