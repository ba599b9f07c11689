package policy

import (
	"encoding/binary"
	"hash/crc32"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// TestMatchesKernel has the kernel decide what TestPolicyFollowsAPI
// has asked a State.
func TestMatchesKernel(t *testing.T) {
	l := newLab(t, []string{xa}, []string{xb}, []string{wa, waIPv6}, []string{wb}, []string{za, zaIPv6},
		[]string{hosted}, []string{finished}, []string{outside, "fd00::1:2", "fd00::9", "2001:db8::5"})
	for _, p := range promises() {
		o := testCluster(t, p.policies)
		for _, pod := range o.Pods {
			pod.Spec.NodeName = "node"
		}
		state := compile(o)
		nft(t, Removal()+state.Ruleset("node"))
		for _, a := range p.attempts {
			if a.from == a.to || a.port == 0 {
				continue // not a packet that a node sees
			}
			to := netip.AddrPortFrom(netip.MustParseAddr(a.to), a.port)
			got := l.passes(t, p.name, "original", func() { l.send(t, a.protocol, netip.MustParseAddr(a.from), to) })
			if got != a.yes {
				t.Errorf("%s: %s to %s, protocol %d: %t\n%s", p.name, a.from, to, a.protocol, got, state.Ruleset("node"))
			}
		}
	}
	nft(t, Removal())
}

// send sends the first packet of a connection.
func (l *lab) send(t *testing.T, protocol Protocol, from netip.Addr, to netip.AddrPort) {
	t.Helper()
	family, target := unix.AF_INET, unix.Sockaddr(nil)
	if to.Addr().Is4() {
		target = &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	} else {
		family, target = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
	}
	kind, number, payload := unix.SOCK_DGRAM, 0, []byte("x")
	switch protocol {
	case TCP:
		kind = unix.SOCK_STREAM
	case SCTP: // without a socket of the kernel's, which may have none
		kind, number, payload = unix.SOCK_RAW, int(SCTP), sctpInit(to.Port())
		switch a := target.(type) {
		case *unix.SockaddrInet4:
			a.Port = 0
		case *unix.SockaddrInet6:
			a.Port = 0
		}
	}
	l.at[from].try(t, func() error {
		fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, number)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		source := unix.Sockaddr(&unix.SockaddrInet4{Addr: [4]byte(from.AsSlice())})
		if from.Is6() {
			source = &unix.SockaddrInet6{Addr: from.As16()}
		}
		if err := unix.Bind(fd, source); err != nil {
			return err
		}
		if protocol == TCP {
			if err := unix.Connect(fd, target); err != unix.EINPROGRESS && err != nil {
				return err
			}
			return nil
		}
		return unix.Sendto(fd, payload, 0, target)
	})
}

// sctpInit returns the first packet of an association to port.
func sctpInit(port uint16) []byte {
	const headers, chunk = 12, 20
	p := make([]byte, headers+chunk)
	binary.BigEndian.PutUint16(p[0:], 40000+port%1000)
	binary.BigEndian.PutUint16(p[2:], port)
	p[12] = 1 // INIT
	binary.BigEndian.PutUint16(p[14:], chunk)
	binary.BigEndian.PutUint32(p[16:], 1)     // tag
	binary.BigEndian.PutUint32(p[20:], 65536) // window
	binary.BigEndian.PutUint16(p[24:], 1)     // streams out
	binary.BigEndian.PutUint16(p[26:], 1)     // and in
	binary.LittleEndian.PutUint32(p[8:], crc32.Checksum(p, crc32.MakeTable(crc32.Castagnoli)))
	return p
}

// TestServicesAreJudgedByEndpoints: the address of a Service is in no
// policy, and the port of it is not that of the pod.
func TestServicesAreJudgedByEndpoints(t *testing.T) {
	l := newLab(t, []string{xa}, []string{wa}, []string{za})
	const service = "10.96.0.1"
	nft(t, `table inet services {
	chain to { type nat hook prerouting priority dstnat; ip daddr `+service+` tcp dport 443 dnat ip to `+wa+`:8080; }
	chain from { type nat hook postrouting priority srcnat; ip daddr `+wa+` masquerade; }
}
`)
	o := testCluster(t, `{metadata: {namespace: w}, spec: {podSelector: {}, ingress: [{from: [{namespaceSelector: {matchLabels: {ns: x}}}], ports: [{port: 8080}]}]}}`)
	nft(t, compile(o).Ruleset("node-w"))
	for from, want := range map[string]bool{xa: true, za: false} {
		to := netip.MustParseAddrPort(service + ":443")
		if got := l.passes(t, "to the Service", "original", func() { l.send(t, TCP, netip.MustParseAddr(from), to) }); got != want {
			t.Errorf("%s to the Service: %t", from, got)
		}
	}
	nft(t, Removal()+"delete table inet services\n")
}

// TestForbiddenConnectionsEnd, in both directions, and go on
// where they still are.
func TestForbiddenConnectionsEnd(t *testing.T) {
	l := newLab(t, []string{xa}, []string{wa})
	var listener net.Listener
	l.at[netip.MustParseAddr(wa)].try(t, func() (err error) {
		listener, err = net.Listen("tcp", wa+":80")
		return err
	})
	defer listener.Close()
	var client net.Conn
	l.at[netip.MustParseAddr(xa)].try(t, func() (err error) {
		client, err = net.Dial("tcp", wa+":80")
		return err
	})
	defer client.Close()
	server, err := listener.Accept()
	l.must(err)
	defer server.Close()
	says := func(who net.Conn, direction string) bool {
		return l.passes(t, "a byte", direction, func() {
			_, err := who.Write([]byte("x"))
			l.must(err)
		})
	}
	permitting, forbidding := `{metadata: {namespace: w}, spec: {podSelector: {}, ingress: [{ports: [{port: 80}]}]}}`, `{metadata: {namespace: w}, spec: {podSelector: {}}}`
	for _, step := range []struct {
		policies string
		want     bool
	}{{permitting, true}, {forbidding, false}, {permitting, true}} {
		nft(t, compile(testCluster(t, step.policies)).Ruleset("node-w"))
		if got := says(client, "original"); got != step.want {
			t.Errorf("a byte of the client with %s: %t", step.policies, got)
		}
		if got := says(server, "reply"); got != step.want {
			t.Errorf("a byte of the server with %s: %t", step.policies, got)
		}
	}
	nft(t, Removal())
}
