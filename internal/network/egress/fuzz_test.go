package egress

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"berth.dev/berth/internal/network/share"
	"berth.dev/berth/internal/testutil/fuzzbound"
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
	e := fuzzedEngine(f)
	f.Fuzz(func(t *testing.T, packet []byte) {
		fuzzbound.Watch(t)
		e.link.deliver(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)}))
	})
}

// fuzzedEngine returns an engine that writes to /dev/null and refuses all
// destinations.
func fuzzedEngine(f testing.TB) *engine {
	f.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { null.Close() })
	config := Default()
	config.Gateway, config.Counters = gateway, new(Counters)
	config.Refuse = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	e := &engine{Config: config, policy: newPolicy(config), dns: newResolver(os.DevNull)}
	e.link = &link{file: null, fd: int(null.Fd()), mtu: 65520, dropped: &config.Counters.dropped}
	e.flows, e.attempts, e.shares = newFlowTable(e), newAttempts(e), share.New(config.Connections)
	if err := e.startStack(f.Context()); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(e.stack.Destroy)
	return e
}

// FuzzSYN sends TCP segments of three pods. Each byte pair of the input is one
// segment: its flags, and its pod and port. All destinations are refused.
func FuzzSYN(f *testing.F) {
	const syn, ack, fin, rst = byte(header.TCPFlagSyn), byte(header.TCPFlagAck), byte(header.TCPFlagFin), byte(header.TCPFlagRst)
	f.Add([]byte{syn, 1, syn, 1, ack, 1, fin | ack, 1})
	f.Add([]byte{syn, 0, syn, 1, syn, 2, syn, 64, rst, 0, syn, 65, syn | ack, 3, 0, 9})
	e := fuzzedEngine(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		fuzzbound.Watch(t)
		for ; len(input) >= 2; input = input[2:] {
			pod := netip.AddrFrom4([4]byte{10, 42, 1, input[1] >> 6})
			packet := segment(pod, 1000+uint16(input[1]&63), header.TCPFlags(input[0]))
			e.link.deliver(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(packet)}))
		}
		// Every attempt is answered, and forgotten then.
		a := e.attempts
		for left := -1; left != 0; {
			a.mu.Lock()
			left = len(a.byID) + a.count
			a.mu.Unlock()
			runtime.Gosched()
		}
		if len(a.waiting) > 0 {
			t.Errorf("%d pods wait after the last attempt", len(a.waiting))
		}
	})
}

// segment returns a TCP segment of a pod, with its checksums.
func segment(pod netip.Addr, port uint16, flags header.TCPFlags) []byte {
	to := netip.MustParseAddr("192.0.2.1")
	packet := make([]byte, header.IPv4MinimumSize+header.TCPMinimumSize)
	ip, tcp := header.IPv4(packet), header.TCP(packet[header.IPv4MinimumSize:])
	ip.Encode(&header.IPv4Fields{
		TotalLength: uint16(len(packet)), TTL: 64, Protocol: uint8(header.TCPProtocolNumber),
		SrcAddr: stackAddress(pod), DstAddr: stackAddress(to),
	})
	ip.SetChecksum(^ip.CalculateChecksum())
	tcp.Encode(&header.TCPFields{SrcPort: port, DstPort: 80, SeqNum: 7, DataOffset: header.TCPMinimumSize, Flags: flags, WindowSize: 1000})
	sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, stackAddress(pod), stackAddress(to), header.TCPMinimumSize)
	tcp.SetChecksum(^tcp.CalculateChecksum(sum))
	return packet
}

// FuzzAttempts asks for connections, repeats and ends them in any order.
func FuzzAttempts(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 64, 65, 66, 128, 129, 192, 193})
	f.Add([]byte{0, 0, 64, 64, 1, 2, 4, 5, 6, 7, 8, 16, 17, 80, 81})
	f.Fuzz(func(t *testing.T, input []byte) {
		fuzzbound.Watch(t)
		const most = 4
		a := newTestAttempts(most)
		a.engine.Connections = most
		defer func() {
			for _, one := range a.byID {
				one.givenUp.Stop()
				one.cancel()
			}
		}()
		for _, op := range input {
			id := stack.TransportEndpointID{RemoteAddress: stackAddress(netip.AddrFrom4([4]byte{10, 0, 0, op >> 4 & 3})), RemotePort: uint16(op & 15)}
			if one := a.find(id); one != nil && op>>6 == 1 {
				a.answered(one)
			} else {
				a.admit(t.Context(), id, 0, func() bool { return op>>6 != 2 })
			}
			waits := 0
			for _, one := range a.byID {
				if one.waits {
					waits++
				}
			}
			sum := 0
			for pod, waiting := range a.waiting {
				if sum += len(waiting); len(waiting) == 0 {
					t.Fatalf("pod %s waits for nothing", pod)
				}
			}
			if a.count != sum || waits != sum || sum > most || len(a.byID) > 2*most {
				t.Fatalf("%d attempts wait, counted as %d and as %d, of %d", waits, a.count, sum, len(a.byID))
			}
		}
	})
}

// FuzzDNS gives two answers of a resolver to a pod's query. Where none fits, a
// third one does.
func FuzzDNS(f *testing.F) {
	f.Add(query(1), answerWith("fine", 0)(query(1), nil), answerWith("late", 0)(query(1), nil))
	f.Add(query(1), query(1), []byte("short"))
	f.Add(query(1), answerWith("", codeRefused)(query(1), nil), []byte{})
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		f.Fatal(err)
	}
	defer server.Close()
	r := newResolver(os.DevNull)
	r.seen, _ = os.Stat(os.DevNull)
	r.checked = time.Now().Add(1000 * time.Hour)
	r.current = Resolvers{Servers: []netip.AddrPort{server.LocalAddr().(*net.UDPAddr).AddrPort()}}
	f.Fuzz(func(t *testing.T, asked, first, second []byte) {
		fuzzbound.Watch(t)
		if len(asked) < dnsHeader || asked[2]&dnsResponse != 0 || len(asked)+len(first)+len(second) > 1<<16-100 {
			return
		}
		answered := make(chan struct{})
		go func() {
			defer close(answered)
			got := make([]byte, 1<<16)
			n, from, err := server.ReadFrom(got)
			if err != nil || !bytes.Equal(got[:n], asked) {
				t.Errorf("the resolver got %x, %v", got[:n], err)
			}
			for _, answer := range [][]byte{first, second, answerWith("third", 0)(asked, nil)} {
				_, _ = server.WriteTo(answer, from) // the port is closed once an answer fits
			}
		}()
		answer := r.ask(t.Context(), asked)
		<-answered
		if answer != nil && (len(answer) < dnsHeader || !bytes.Equal(answer[:2], asked[:2]) || answer[2]&dnsResponse == 0) {
			t.Errorf("%x is answered with %x", asked, answer)
		}
		if answer == nil {
			t.Errorf("%x has no answer", asked)
		}
		if failure := serverFailure(asked); len(failure) != len(asked) || failure[2]&dnsResponse == 0 {
			t.Errorf("the failure of %x is %x", asked, failure)
		}
	})
}

// FuzzResolvers reads a host's resolv.conf.
func FuzzResolvers(f *testing.F) {
	f.Add("nameserver 192.0.2.1\nnameserver fe80::1%eth0\nsearch a.b\noptions ndots:5 timeout:3 attempts:2\n")
	f.Add("options timeout:100000 attempts:1000000000\n")
	path := filepath.Join(f.TempDir(), "resolv.conf")
	f.Fuzz(func(t *testing.T, text string) {
		fuzzbound.Watch(t)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r := newResolver(path)
		got := r.read()
		if got.Timeout < time.Second || got.Timeout > maxTimeout {
			t.Errorf("a timeout of %v", got.Timeout)
		}
		if got.Attempts > maxAttempts {
			t.Errorf("a query is sent %d times", got.Attempts)
		}
		for _, server := range got.Servers {
			if !server.IsValid() || server.Port() != dnsPort {
				t.Errorf("%q names the server %v", text, server)
			}
		}
	})
}
