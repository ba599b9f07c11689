package egress

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// The addresses of the lab. The test process is the host: it runs in a separate
// network namespace, where hostAddr is an ordinary address of the host. A
// second namespace is the node, whose packets reach the host through egress
// only.
var (
	hostAddr = netip.MustParseAddr("203.0.113.10")
	hostIPv6 = netip.MustParseAddr("2001:db8::10")
	podAddr  = netip.MustParseAddr("10.42.0.2")
	podIPv6  = netip.MustParseAddr("fd42::2")
	// deadAddr never answers: the host knows its neighbour, which does not exist.
	deadAddr = netip.MustParseAddr("203.0.113.99")
	gateway  = netip.MustParseAddr("10.42.255.1")
	pods     = netip.MustParsePrefix("10.42.0.0/16")
)

func TestMain(m *testing.M) { testutil.MainInNamespaces(m, setUpHost) }

func setUpHost() error {
	if err := testutil.SetUpLink("lo"); err != nil {
		return err
	}
	if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "host0"}}); err != nil {
		return err
	}
	if err := testutil.SetUpLink("host0", netip.PrefixFrom(hostAddr, 24), netip.PrefixFrom(hostIPv6, 64)); err != nil {
		return err
	}
	bridge, err := netlink.LinkByName("host0")
	if err == nil {
		err = netlink.NeighSet(&netlink.Neigh{
			LinkIndex: bridge.Attrs().Index, IP: deadAddr.AsSlice(), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		})
	}
	if err != nil {
		return err
	}
	_, blackhole, _ := net.ParseCIDR("192.0.2.0/24")
	if err := netlink.RouteAdd(&netlink.Route{Dst: blackhole, Type: unix.RTN_UNREACHABLE}); err != nil {
		return err
	}
	return nil
}

// lab is one node with its egress.
type lab struct {
	testing.TB
	tun      *os.File
	config   Config
	counters Counters
	work     chan func()
	cancel   context.CancelFunc
	done     chan struct{}
	err      error // of Run, after done
}

func (l *lab) stats() Stats { return l.counters.Stats() }

// newLab starts a node, and egress for it. When the test ends, egress stops,
// and no goroutine and no descriptor of it may be left.
func newLab(t testing.TB, adjust ...func(*Config)) *lab {
	t.Helper()
	testutil.Require(t, testutil.UserNS, testutil.TUN)
	leaks := checkLeaks(t)
	l := newNode(t)
	config := Default()
	config.Gateway, config.Cluster = gateway, []netip.Prefix{pods}
	config.Counters = &l.counters
	if testing.Verbose() {
		config.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	config.ResolvConf = filepath.Join(t.TempDir(), "resolv.conf")
	for _, a := range adjust {
		a(&config)
	}
	l.config = config
	l.start()
	t.Cleanup(func() {
		l.cancel()
		l.wait()
		l.tun.Close()
		close(l.work)
		leaks()
	})
	return l
}

// start starts egress on the device of the node.
func (l *lab) start() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	l.cancel, l.done = cancel, done
	go func() {
		defer close(done)
		l.err = Run(ctx, l.tun, l.config)
	}()
}

// newNode makes the node's namespace, which lives on one locked thread.
func newNode(t testing.TB) *lab {
	t.Helper()
	l := &lab{TB: t, work: make(chan func())}
	ready := make(chan error)
	testutil.OnNewThread(func() {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			l.tun, err = setUpNode()
		}
		ready <- err
		for f := range l.work {
			f()
		}
	})
	if err := <-ready; err != nil {
		t.Fatalf("set up node: %v", err)
	}
	return l
}

func setUpNode() (*os.File, error) {
	tun, err := linux.OpenTUN("out0")
	if err != nil {
		return nil, err
	}
	link, err := netlink.LinkByName("out0")
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetMTU(link, 65520); err != nil {
		return nil, err
	}
	if err := testutil.SetUpLink("lo"); err != nil {
		return nil, err
	}
	if err := testutil.SetUpLink("out0", netip.PrefixFrom(podAddr, 32), netip.PrefixFrom(podIPv6, 128)); err != nil {
		return nil, err
	}
	for _, everything := range []string{"0.0.0.0/0", "::/0"} {
		_, destination, _ := net.ParseCIDR(everything)
		if err := netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: destination, Scope: unix.RT_SCOPE_LINK}); err != nil {
			return nil, fmt.Errorf("add route to %s: %w", everything, err)
		}
	}
	return tun, waitLocal(podIPv6)
}

// waitLocal waits until the kernel takes packets to an address: for IPv6 that
// is some time after the address was added.
func waitLocal(address netip.Addr) error {
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		routes, err := netlink.RouteGet(address.AsSlice())
		if err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
			return nil
		}
	}
	return fmt.Errorf("address %s did not become local", address)
}

// onNode runs f in the node's network namespace.
func (l *lab) onNode(f func()) {
	finished := make(chan struct{})
	l.work <- func() { defer close(finished); f() }
	<-finished
}

// dial connects from the node. A socket stays where it was made.
func (l *lab) dial(network, to string) (conn net.Conn, err error) {
	// A numeric address is dialled on the calling thread.
	l.onNode(func() { conn, err = net.DialTimeout(network, to, 20*time.Second) })
	if err == nil {
		conn.SetDeadline(time.Now().Add(30 * time.Second))
	}
	return conn, err
}

func (l *lab) mustDial(network, to string) net.Conn {
	l.Helper()
	conn, err := l.dial(network, to)
	if err != nil {
		l.Fatalf("dial %s %s from the node: %v", network, to, err)
	}
	l.Cleanup(func() { conn.Close() })
	return conn
}

// wait waits until Run has returned.
func (l *lab) wait() {
	l.Helper()
	select {
	case <-l.done:
	case <-time.After(20 * time.Second):
		l.Fatalf("egress does not end:\n%s", testutil.Stacks())
	}
}

// checkLeaks returns a check that there are no more descriptors and goroutines
// than there were.
func checkLeaks(t testing.TB) func() {
	files := func() int {
		entries, _ := os.ReadDir("/proc/self/fd")
		return len(entries)
	}
	filesBefore, goroutinesBefore := files(), runtime.NumGoroutine()
	return func() {
		t.Helper()
		testutil.Eventually(t, "descriptors and goroutines of egress are gone", func() bool {
			// The library keeps pipes for splice(2) until they are collected.
			runtime.GC()
			return files() <= filesBefore && runtime.NumGoroutine() <= goroutinesBefore
		})
	}
}

// listenTCP serves each connection to an address of the host.
func listenTCP(t testing.TB, address string, serve func(*net.TCPConn)) netip.AddrPort {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	testutil.Serve(t, listener, func(conn net.Conn) { serve(conn.(*net.TCPConn)) })
	return listener.Addr().(*net.TCPAddr).AddrPort()
}

// listenUDP answers each datagram to an address of the host.
func listenUDP(t testing.TB, address string, answer func(query []byte, from net.Addr) []byte) netip.AddrPort {
	t.Helper()
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		buffer := make([]byte, datagram)
		for {
			n, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply := answer(buffer[:n], from); reply != nil {
				socket.WriteTo(reply, from)
			}
		}
	}()
	return socket.LocalAddr().(*net.UDPAddr).AddrPort()
}
