package overlay

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// The lab consists of hosts, each a network namespace, and a router between them,
// which is the test's namespace. Behind each host is a node: another namespace
// with only a TUN device.
func TestMain(m *testing.M) {
	if role := os.Getenv(asRole); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testutil.MainInNamespaces(m, func() error {
		for _, sysctl := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+sysctl, []byte("1"), 0); err != nil {
				return err
			}
		}
		return nil
	})
}

var testKey = []byte("a key for tests that no job has.")

// member is a host and its node.
type member struct {
	host, node *namespace
	hostAddr   netip.Addr
	nodeAddr   netip.Addr
	tuns       []*os.File
	conns      []*os.File
	ports      []uint16
	listener   *net.TCPListener
	carrier    Carrier
	overlay    *Overlay
	dialled    atomic.Int32 // attempts to open a stream
	warned     atomic.Int32
	cancel     context.CancelFunc
	done       chan struct{}
	programs   []*os.Process         // that carry packets, such as the overlay's
	rivals     map[string]*namespace // the namespaces of rivals, by name
	err        error
}

type lab struct {
	testing.TB
	members []*member
	nodes   []Node
	views   [][]Node // the nodes as each member sees them, if they differ
}

type labConfig struct {
	mtus       []int // of the link of each host; their number is that of hosts
	queues     int
	inner      int    // MTU of the nodes; 0: what the hosts' network carries
	offloads   bool   // of the hosts' links
	direct     bool   // two hosts without a router
	rate       uint64 // of the hosts' links, in bytes per second; 0: any
	wildcard   bool   // the sockets take IPv6 too, at any address
	ipv6       bool   // the hosts' network is IPv6
	carrier    Carrier
	streams    bool // the nodes take streams
	late       bool // the last node begins when the others have tried streams
	through    func(l *lab)
	superBytes int
	processes  bool // the overlays are processes, and each host has one core
	seat       bool // the last two nodes have the same addresses, and the test starts them
}

func newLab(t testing.TB, config labConfig) *lab {
	t.Helper()
	testutil.Require(t, testutil.UserNS, testutil.TUN)
	l := &lab{TB: t}
	for i := range config.mtus {
		l.members = append(l.members, &member{
			host:     newNamespace(t),
			node:     newNamespace(t),
			hostAddr: netip.AddrFrom4([4]byte{192, 0, byte(i), 2}),
			nodeAddr: netip.AddrFrom4([4]byte{10, 42, byte(i), 1}),
			carrier:  config.carrier,
			rivals:   map[string]*namespace{},
		})
		if config.seat && i == len(config.mtus)-1 {
			l.members[i].nodeAddr = l.members[i-1].nodeAddr
		}
		if config.ipv6 {
			l.members[i].hostAddr = netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 7: byte(i), 15: 2})
		}
	}
	if config.direct {
		l.connectDirectly(config)
	} else {
		for i, mtu := range config.mtus {
			l.connect(i, mtu, config.offloads)
		}
	}
	for i, m := range l.members {
		m.setUpNode(t, max(1, config.queues), config.wildcard)
		var stream netip.AddrPort
		if config.streams {
			stream = m.listen(t)
		}
		l.nodes = append(l.nodes, Node{
			Name:      fmt.Sprintf("n%d", i),
			Endpoints: m.endpoints(),
			Stream:    stream,
			Prefixes:  []netip.Prefix{netip.PrefixFrom(m.nodeAddr, 24).Masked(), netip.PrefixFrom(m.nodeIPv6(), 64).Masked()},
		})
	}
	mtu := config.inner
	for _, m := range l.members {
		m.host.try(t, func() error {
			for _, other := range l.members {
				if other == m {
					continue
				}
				path, err := MTU([]netip.Addr{other.hostAddr})
				if err != nil {
					return err
				}
				if config.inner == 0 && (mtu == 0 || path < mtu) {
					mtu = path
				}
			}
			return nil
		})
	}
	for _, m := range l.members {
		m.node.try(t, func() error {
			link, err := netlink.LinkByName("mesh0")
			if err != nil {
				return err
			}
			if config.superBytes != 0 {
				if err := netlink.LinkSetGSOMaxSize(link, config.superBytes); err != nil {
					return err
				}
				if err := netlink.LinkSetGSOIPv4MaxSize(link, config.superBytes); err != nil {
					return err
				}
			}
			return netlink.LinkSetMTU(link, mtu)
		})
	}
	if config.through != nil {
		config.through(l)
	}
	for i, m := range l.members {
		nodes := l.nodes
		if l.views != nil {
			nodes = l.views[i]
		}
		if config.seat && i >= len(l.members)-2 {
			break
		}
		if config.processes {
			m.pin(t, i)
			m.carryElsewhere(t, i, nodes)
			continue
		}
		if config.late && i == len(l.members)-1 {
			for _, other := range l.members[:i] {
				testutil.Eventually(t, "a node tries TCP", func() bool { return other.dialled.Load() > 0 })
			}
		}
		m.start(t, i, nodes)
	}
	if config.seat {
		return l
	}
	if !config.processes {
		l.awaitPaths()
		return l
	}
	for _, m := range l.members[1:] {
		echoUDP(t, l.members[0], m.serveUDP(t, m.nodeAddr), noise(10))
	}
	return l
}

func (m *member) nodeIPv6() netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0x42, 7: m.nodeAddr.As4()[2], 15: 1})
}

func (m *member) endpoints() []netip.AddrPort {
	var endpoints []netip.AddrPort
	for _, port := range m.ports {
		endpoints = append(endpoints, netip.AddrPortFrom(m.hostAddr, port))
	}
	return endpoints
}

// connect makes the link between the router and a host.
func (l *lab) connect(i, mtu int, offloads bool) {
	l.Helper()
	m := l.members[i]
	name := fmt.Sprintf("r%d", i)
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name, MTU: mtu}, PeerName: "eth0", PeerNamespace: netlink.NsFd(m.host.file.Fd())}
	if err := netlink.LinkAdd(pair); err != nil {
		l.Fatalf("add veth: %v", err)
	}
	l.Cleanup(func() { netlink.LinkDel(pair) })
	router, bits := m.hostAddr.Prev(), 24
	if m.hostAddr.Is6() {
		bits = 64
	}
	if err := addLink(name, mtu, offloads, netip.PrefixFrom(router, bits)); err != nil {
		l.Fatal(err)
	}
	m.host.try(l, func() error {
		if err := addLink("eth0", mtu, offloads, netip.PrefixFrom(m.hostAddr, bits)); err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{Gw: router.AsSlice()})
	})
}

func (l *lab) connectDirectly(config labConfig) {
	l.Helper()
	a, b := l.members[0], l.members[1]
	a.host.try(l, func() error {
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0", PeerNamespace: netlink.NsFd(b.host.file.Fd())}
		return netlink.LinkAdd(pair)
	})
	for _, m := range l.members {
		m.host.try(l, func() error {
			if err := addLink("eth0", config.mtus[0], config.offloads, netip.PrefixFrom(m.hostAddr, 16)); err != nil || config.rate == 0 {
				return err
			}
			return limitRate("eth0", config.rate)
		})
	}
}

func (m *member) setUpNode(t testing.TB, queues int, wildcard bool) {
	t.Helper()
	m.node.try(t, func() (err error) {
		opened, err := linux.OpenTUNQueues("mesh0", queues)
		if err != nil {
			return err
		}
		for _, queue := range opened {
			held, err := Hold(queue)
			queue.Close()
			if err != nil {
				return err
			}
			m.tuns = append(m.tuns, held)
		}
		if err := addLink("lo", 65536, true); err != nil {
			return err
		}
		if err := addLink("mesh0", 1500, true, netip.PrefixFrom(m.nodeAddr, 32), netip.PrefixFrom(m.nodeIPv6(), 128)); err != nil {
			return err
		}
		link, err := netlink.LinkByName("mesh0")
		if err != nil {
			return err
		}
		for _, cluster := range []string{"10.42.0.0/16", "fd42::/32"} {
			_, destination, _ := net.ParseCIDR(cluster)
			if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: destination, Scope: unix.RT_SCOPE_LINK}); err != nil {
				return err
			}
		}
		return nil
	})
	m.host.try(t, func() error {
		for range queues {
			network, address := "udp", &net.UDPAddr{IP: m.hostAddr.AsSlice()}
			if wildcard {
				network, address = "udp", nil
			}
			conn, err := net.ListenUDP(network, address)
			if err != nil {
				return err
			}
			held, err := Hold(conn)
			m.ports = append(m.ports, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
			conn.Close()
			if err != nil {
				return err
			}
			m.conns = append(m.conns, held)
		}
		return nil
	})
	t.Cleanup(func() {
		for i := range m.tuns {
			m.tuns[i].Close()
			m.conns[i].Close()
		}
	})
}

// listen makes the listener for streams.
func (m *member) listen(t testing.TB) netip.AddrPort {
	t.Helper()
	m.host.try(t, func() (err error) {
		m.listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: m.hostAddr.AsSlice()})
		return err
	})
	t.Cleanup(func() { m.listener.Close() })
	return netip.AddrPortFrom(m.hostAddr, m.listener.Addr().(*net.TCPAddr).AddrPort().Port())
}

// dialHost connects from the host.
func (m *member) dialHost(ctx context.Context, to netip.AddrPort) (conn *net.TCPConn, err error) {
	m.host.do(func() { conn, err = new(net.Dialer).DialTCP(ctx, "tcp", netip.AddrPort{}, to) })
	m.dialled.Add(1)
	return conn, err
}

func (m *member) start(t testing.TB, self int, nodes []Node) {
	t.Helper()
	shown := io.Discard
	if testing.Verbose() {
		shown = os.Stderr
	}
	log := slog.New(slog.NewTextHandler(shown, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.LevelKey && a.Value.Any() == slog.LevelWarn {
				m.warned.Add(1)
			}
			return a
		},
	}))
	var queues []*os.File
	var conns []*net.UDPConn
	for i := range m.tuns {
		queue, err := Hold(m.tuns[i])
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, queue)
		conn, err := net.FilePacketConn(m.conns[i])
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn.(*net.UDPConn))
	}
	m.host.try(t, func() (err error) {
		m.overlay, err = New(Config{
			Queues: queues, Conns: conns, Key: testKey, Nodes: nodes, Self: self, Log: log,
			Carrier: m.carrier, Listener: m.listener, Dial: m.dialHost,
		})
		return err
	})
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel, m.done = cancel, make(chan struct{})
	go func() {
		defer close(m.done)
		m.err = m.overlay.Run(ctx)
	}()
	t.Cleanup(func() {
		m.stop(t)
		if m.err != nil {
			t.Errorf("overlay of node %d: %v", self, m.err)
		}
		t.Logf("node %d: %+v", self, m.overlay.Counters())
	})
}

func (m *member) stop(t testing.TB) {
	t.Helper()
	m.cancel()
	select {
	case <-m.done:
	case <-time.After(20 * time.Second):
		t.Fatalf("the overlay does not end:\n%s", testutil.Stacks())
	}
}
