package egress

import (
	"net/netip"
	"os"
	"testing"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
)

// FuzzPacket: no packet of a pod makes the egress fail. All destinations are
// refused, so no packet leaves the test.
func FuzzPacket(f *testing.F) {
	ping := make([]byte, header.IPv4MinimumSize+header.ICMPv4MinimumSize)
	header.IPv4(ping).Encode(&header.IPv4Fields{
		TotalLength: uint16(len(ping)), TTL: 64, Protocol: uint8(header.ICMPv4ProtocolNumber),
		SrcAddr: stackAddress(podAddr), DstAddr: stackAddress(gateway),
	})
	header.IPv4(ping).SetChecksum(^header.IPv4(ping).CalculateChecksum())
	ping[header.IPv4MinimumSize] = byte(header.ICMPv4Echo)
	ping6 := make([]byte, header.IPv6MinimumSize+header.ICMPv6MinimumSize)
	header.IPv6(ping6).Encode(&header.IPv6Fields{
		PayloadLength: header.ICMPv6MinimumSize, TransportProtocol: header.ICMPv6ProtocolNumber,
		SrcAddr: stackAddress(podIPv6), DstAddr: stackAddress(hostIPv6),
	})
	udp := append(ping[:0:0], ping...)
	udp[9] = byte(header.UDPProtocolNumber)
	for _, seed := range [][]byte{ping, ping6, udp, {}, {0x45}, {0x60}} {
		f.Add(seed)
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		f.Fatal(err)
	}
	defer null.Close()
	config := Default()
	config.Gateway, config.Counters = gateway, new(Counters)
	config.Refuse = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	e := &engine{Config: config, policy: newPolicy(config), dns: newResolver(os.DevNull)}
	e.link = &link{file: null, fd: int(null.Fd()), mtu: 65520, dropped: &config.Counters.dropped}
	e.flows = newFlowTable(e)
	if err := e.startStack(f.Context()); err != nil {
		f.Fatal(err)
	}
	defer e.stack.Destroy()
	f.Fuzz(func(t *testing.T, packet []byte) {
		e.link.deliver(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)}))
	})
}
