package overlay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/linux"
	"berth.dev/berth/internal/testutil"
)

// The lab has hosts, each a network namespace, and a router between them,
// which is the namespace of the test. Behind each host is a node: one more
// namespace, that has a TUN device only.
const inNamespaces = "BERTH_OVERLAY_TEST_ROUTER"

func TestMain(m *testing.M) {
	// A fuzzer talks with its workers through descriptors, and needs no lab.
	if slices.ContainsFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.fuzz=") || strings.HasPrefix(arg, "-test.fuzzworker")
	}) {
		os.Exit(m.Run())
	}
	if os.Getenv(inNamespaces) == "" {
		command := exec.Command("/proc/self/exe", os.Args[1:]...)
		command.Env = append(os.Environ(), inNamespaces+"=1")
		command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
		command.SysProcAttr = testutil.NewNamespaces()
		err := command.Run()
		if exit := new(exec.ExitError); err == nil || errors.As(err, &exit) {
			os.Exit(command.ProcessState.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "no namespaces:", err)
		os.Exit(m.Run())
	}
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0); err != nil {
		fmt.Fprintln(os.Stderr, "set up the router of the lab:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

var testKey = []byte("a key for tests that no job has.")

// namespace is a network namespace that lives on one locked thread.
type namespace struct {
	work chan func()
	file *os.File
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	n := &namespace{work: make(chan func())}
	ready := make(chan error)
	onNewThread(func() {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			n.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
		ready <- err
		for f := range n.work {
			f()
		}
	})
	if err := <-ready; err != nil {
		t.Fatalf("make a namespace: %v", err)
	}
	t.Cleanup(func() {
		n.file.Close()
		close(n.work)
	})
	return n
}

// onNewThread runs f on a thread that ends with it. The first thread of the
// process cannot end, and what is read below /proc/self is its.
func onNewThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		started := make(chan struct{})
		onNewThread(func() { close(started); f() })
		<-started
		runtime.UnlockOSThread()
	}()
}

func (n *namespace) do(f func()) {
	finished := make(chan struct{})
	n.work <- func() { defer close(finished); f() }
	<-finished
}

// try does f in the namespace, and fails the test on its error.
func (n *namespace) try(t testing.TB, f func() error) {
	t.Helper()
	var err error
	n.do(func() { err = f() })
	if err != nil {
		t.Fatal(err)
	}
}

// member is a host and its node.
type member struct {
	host, node *namespace
	hostAddr   netip.Addr
	nodeAddr   netip.Addr
	tuns       []*os.File
	conns      []*net.UDPConn
	overlay    *Overlay
	cancel     context.CancelFunc
	done       chan struct{}
	err        error
}

type lab struct {
	testing.TB
	members []*member
	nodes   []Node
	views   [][]Node // of each member, where they differ from nodes
}

type labConfig struct {
	mtus       []int // of the link of each host; their number is that of hosts
	queues     int
	inner      int  // MTU of the nodes; 0: what the hosts' network carries
	offloads   bool // of the hosts' links
	direct     bool // two hosts without a router
	wildcard   bool // the sockets take IPv6 too, at any address
	through    func(l *lab)
	superBytes int
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
		})
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
		l.nodes = append(l.nodes, Node{
			Name:      fmt.Sprintf("n%d", i),
			Endpoints: m.endpoints(),
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
		m.start(t, i, nodes)
	}
	return l
}

func (m *member) nodeIPv6() netip.Addr {
	return netip.AddrFrom16([16]byte{0xfd, 0x42, 7: m.nodeAddr.As4()[2], 15: 1})
}

func (m *member) endpoints() []netip.AddrPort {
	var endpoints []netip.AddrPort
	for _, conn := range m.conns {
		endpoints = append(endpoints, netip.AddrPortFrom(m.hostAddr, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()))
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
	router := netip.AddrFrom4([4]byte{192, 0, byte(i), 1})
	if err := errors.Join(addLink(name, mtu, offloads, netip.PrefixFrom(router, 24))); err != nil {
		l.Fatal(err)
	}
	m.host.try(l, func() error {
		if err := addLink("eth0", mtu, offloads, netip.PrefixFrom(m.hostAddr, 24)); err != nil {
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
			return addLink("eth0", config.mtus[0], config.offloads, netip.PrefixFrom(m.hostAddr, 16))
		})
	}
}

func addLink(name string, mtu int, offloads bool, addresses ...netip.Prefix) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, address := range addresses {
		ipNet := &net.IPNet{IP: address.Addr().AsSlice(), Mask: net.CIDRMask(address.Bits(), address.Addr().BitLen())}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipNet, Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add %s to %s: %w", address, name, err)
		}
	}
	if err := netlink.LinkSetMTU(link, mtu); err != nil {
		return err
	}
	if !offloads {
		for _, what := range []uint32{unix.ETHTOOL_STSO, unix.ETHTOOL_SGSO, unix.ETHTOOL_SGRO, unix.ETHTOOL_STXCSUM} {
			if err := setEthtool(name, what, 0); err != nil {
				return err
			}
		}
	}
	return netlink.LinkSetUp(link)
}

// setEthtool switches an offload of an interface.
func setEthtool(name string, what, value uint32) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	argument := [2]uint32{what, value}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&argument)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("set offload %#x of %s: %w", what, name, errno)
	}
	return nil
}

func (m *member) setUpNode(t testing.TB, queues int, wildcard bool) {
	t.Helper()
	m.node.try(t, func() (err error) {
		if m.tuns, err = linux.OpenTUNQueues("mesh0", queues); err != nil {
			return err
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
			network, address := "udp4", &net.UDPAddr{IP: m.hostAddr.AsSlice()}
			if wildcard {
				network, address = "udp", nil
			}
			conn, err := net.ListenUDP(network, address)
			if err != nil {
				return err
			}
			m.conns = append(m.conns, conn)
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

func (m *member) start(t testing.TB, self int, nodes []Node) {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	var err error
	m.overlay, err = New(Config{Queues: m.tuns, Conns: m.conns, Key: testKey, Nodes: nodes, Self: self, Log: log})
	if err != nil {
		t.Fatal(err)
	}
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
		stacks := make([]byte, 1<<20)
		t.Fatalf("the overlay does not end:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

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
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				hash := sha256.New()
				if _, err := io.Copy(hash, conn); err == nil {
					conn.Write(hash.Sum(nil))
				}
			}()
		}
	}()
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

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !condition(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
