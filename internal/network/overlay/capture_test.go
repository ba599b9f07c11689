package overlay

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// capture is a packet socket on a node's device. It sees every packet that the
// overlay delivers, whatever its destination.
type capture int

func (m *member) capture(t testing.TB) capture {
	t.Helper()
	fd := -1
	m.node.try(t, func() (err error) {
		link, err := netlink.LinkByName("mesh0")
		if err != nil {
			return err
		}
		everything := networkOrder(unix.ETH_P_ALL)
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(everything)); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: everything, Ifindex: link.Attrs().Index})
	})
	t.Cleanup(func() { unix.Close(fd) })
	return capture(fd)
}

// sources returns the source addresses of the packets that were delivered since
// the last call.
func (c capture) sources(t testing.TB) (from []netip.Addr) {
	t.Helper()
	for packet := make([]byte, maxPacket); ; {
		n, address, err := unix.Recvfrom(int(c), packet, 0)
		if err == unix.EAGAIN {
			return from
		}
		if err != nil {
			t.Fatal(err)
		}
		if link, ok := address.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING {
			continue // sent by the node itself
		}
		switch {
		case n >= minIPv4Header && packet[0]>>4 == 4:
			from = append(from, netip.AddrFrom4([4]byte(packet[12:16])))
		case n >= ipv6Header && packet[0]>>4 == 6:
			from = append(from, netip.AddrFrom16([16]byte(packet[8:24])))
		default:
			from = append(from, netip.Addr{})
		}
	}
}
