package fastpath

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/rpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/base/linux"
	"berth.dev/berth/internal/testutil"
)

// The lab is a machine (user and network namespace of the test) with hosts,
// which are network namespaces joined by a wire. On each host is a node: a process
// (the agent) with its own user and network namespaces, where pods hang on a bridge. A
// second wire between the nodes stands for the overlay. The Switch of a host runs in the
// host's namespace without any capability.
//
// Every process is the test binary, started with a role.
const (
	asRole       = "BERTH_FASTPATH_TEST_ROLE"
	roleAgent    = "agent"
	roleSwitch   = "switch"
	roleLaunch   = "launch"
	roleProgram  = "program"
	labTimeout   = 30 * time.Second
	numListeners = 2
)

func TestMain(m *testing.M) {
	if role := os.Getenv(asRole); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintln(os.Stderr, role+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Descriptor holders become children of this process when a Switch dies.
	testutil.MainInNamespaces(m, linux.BecomeSubreaper)
}

func runRole(role string) error {
	switch role {
	case roleAgent:
		return runAgent()
	case roleSwitch:
		return runSwitch()
	case roleLaunch:
		return runLaunch()
	case roleProgram:
		return runProgram()
	}
	return fmt.Errorf("no role %q", role)
}

func role(name string, env ...string) *exec.Cmd {
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), asRole+"="+name)
	command.Env = append(command.Env, env...)
	command.Stderr = os.Stderr
	command.SysProcAttr = &syscall.SysProcAttr{}
	return command
}

// labConfig configures a lab.
type labConfig struct {
	without   without
	services  map[string]Route // of pods' connections, beside the pods themselves
	denied    []string         // targets that the policy does not permit
	pinned    bool             // each host has one core
	old       bool             // the kernel is as good as Linux 5.14
	mtu       int
	hostsIPv6 bool // the hosts talk IPv6 to each other
	busy      int  // of the Switches
}

type lab struct {
	testing.TB
	config labConfig
	hosts  []*host
	dir    string
	// patience limits the wait for a process. It shrinks when one has hung.
	patience time.Duration
}

// host is a host with its node.
type host struct {
	lab      *lab
	index    int
	ns       *namespace
	address  netip.Addr
	agent    *rpc.Client
	agentPID int

	endpoints  []netip.AddrPort
	listeners  []*os.File
	containers *os.File
	bells      *os.File
	state      *os.File
	lifeline   [2]*os.File // reading and writing end

	process *exec.Cmd
	control io.WriteCloser
	answers *bufio.Reader
	ended   chan struct{}
}

// switchConfig configures a Switch process.
type switchConfig struct {
	Nodes    []Node
	Self     int
	Services map[string]Route
	Denied   []string
	Without  without
	Old      bool
	Busy     int
}

func newLab(t testing.TB, config labConfig) *lab {
	t.Helper()
	testutil.Require(t, testutil.UserNS)
	l := &lab{TB: t, config: config, dir: t.TempDir(), patience: hangsAfter}
	for i := range 2 {
		l.hosts = append(l.hosts, &host{lab: l, index: i, ns: newNamespace(t), address: config.hostAddress(i)})
	}
	a, b := l.hosts[0], l.hosts[1]
	for _, h := range l.hosts {
		h.ns.try(t, trustAddresses)
	}
	l.wire("eth0", a.ns, b.ns, a.prefixesOfHost(), b.prefixesOfHost())
	nodes := [2]*namespace{}
	for i, h := range l.hosts {
		if config.pinned {
			h.ns.try(t, func() error { return pin(i) })
		}
		nodes[i] = h.startAgent()
	}
	mesh := [2][]netip.Prefix{}
	for i := range mesh {
		mesh[i] = []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.43.0.%d/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd43::%d/64", i+1))}
	}
	l.wire("mesh0", nodes[0], nodes[1], mesh[0], mesh[1])
	for i, n := range nodes {
		for family, other := range mesh[1-i] {
			n.try(t, func() error {
				return netlink.RouteAdd(&netlink.Route{Dst: ipNet(l.hosts[1-i].prefixes()[family]), Gw: other.Addr().AsSlice()})
			})
		}
	}
	for _, h := range l.hosts {
		h.prepareSwitch()
	}
	for _, h := range l.hosts {
		h.startSwitch()
	}
	return l
}

// hostAddress returns the address of a host.
func (c labConfig) hostAddress(index int) netip.Addr {
	if c.hostsIPv6 {
		return netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", index+1))
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, byte(index + 1)})
}

// prefixesOfHost returns the address and the link-local address of a host, with the
// lengths of their prefixes.
func (h *host) prefixesOfHost() []netip.Prefix {
	return []netip.Prefix{
		netip.PrefixFrom(h.address, h.address.BitLen()*3/4),
		netip.MustParsePrefix(fmt.Sprintf("fe80::%d/64", h.index+1)),
	}
}

// prefixes returns the prefixes of the addresses of a host's pods, IPv4 and then IPv6.
func (h *host) prefixes() [2]netip.Prefix {
	return [2]netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 42, byte(h.index), 0}), 24),
		netip.MustParsePrefix(fmt.Sprintf("fd42:0:0:%d::/64", h.index)),
	}
}

// trustAddresses switches off the detection of duplicate IPv6 addresses for interfaces
// that are made later in this namespace. With the detection an address is unusable for
// some seconds, and a forwarded packet finds no neighbour.
func trustAddresses() error {
	return errors.Join(
		os.WriteFile("/proc/sys/net/ipv6/conf/all/accept_dad", []byte("0"), 0),
		os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// wire joins two namespaces.
func (l *lab) wire(name string, a, b *namespace, atA, atB []netip.Prefix) {
	l.Helper()
	a.try(l, func() error {
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(b.file.Fd())})
	})
	for n, addresses := range map[*namespace][]netip.Prefix{a: atA, b: atB} {
		n.try(l, func() error { return testutil.SetUpLink(name, addresses...) })
		if l.config.mtu != 0 {
			n.try(l, func() error {
				link, err := netlink.LinkByName(name)
				if err != nil {
					return err
				}
				return netlink.LinkSetMTU(link, l.config.mtu)
			})
		}
	}
	a.try(l, func() error { return settled(atA) })
	b.try(l, func() error { return settled(atB) })
	l.introduce(name, a, b, atB)
	l.introduce(name, b, a, atA)
}

// introduce enters the IPv6 addresses of a neighbour on a wire in a namespace's neighbour
// table. For a second after it has got the addresses, the neighbour does not answer
// solicitations.
func (l *lab) introduce(name string, to, neighbour *namespace, addresses []netip.Prefix) {
	l.Helper()
	var there net.HardwareAddr
	neighbour.try(l, func() error {
		link, err := netlink.LinkByName(name)
		if err == nil {
			there = link.Attrs().HardwareAddr
		}
		return err
	})
	to.try(l, func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, address := range addresses {
			if address.Addr().Is6() {
				err = errors.Join(err, netlink.NeighSet(&netlink.Neigh{
					LinkIndex: link.Attrs().Index, IP: address.Addr().AsSlice(), HardwareAddr: there, State: netlink.NUD_PERMANENT,
				}))
			}
		}
		return err
	})
}

// settled waits until addresses of this namespace are usable: the kernel enables IPv6
// addresses in the background, once their link is up.
func settled(addresses []netip.Prefix) error {
	for _, address := range addresses {
		if address.Addr().Is4() || address.Addr().IsLinkLocalUnicast() {
			continue
		}
		for deadline := time.Now().Add(labTimeout); ; time.Sleep(time.Millisecond) {
			routes, err := netlink.RouteGet(address.Addr().AsSlice())
			if err == nil && len(routes) > 0 && routes[0].Type == unix.RTN_LOCAL {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("await %s: %v, %w", address, routes, errors.Join(err, unix.ETIMEDOUT))
			}
		}
	}
	return nil
}

// startAgent starts the node of a host, and returns its network namespace.
func (h *host) startAgent() *namespace {
	t := h.lab
	t.Helper()
	own, theirs, err := linux.PacketPair("bells")
	if err != nil {
		t.Fatal(err)
	}
	if h.bells, err = own.File(); err != nil {
		t.Fatal(err)
	}
	own.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	calls, called := os.NewFile(uintptr(fds[0]), "calls"), os.NewFile(uintptr(fds[1]), "called")
	command := role(roleAgent, fmt.Sprintf("NODE=%d", h.index))
	command.ExtraFiles = []*os.File{called, theirs}
	command.SysProcAttr = testutil.NewNamespaces()
	command.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{Size: 1}}
	command.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{Size: 1}}
	h.ns.try(t, command.Start)
	h.agentPID = command.Process.Pid
	called.Close()
	theirs.Close()
	conn, err := net.FileConn(calls)
	calls.Close()
	if err != nil {
		t.Fatal(err)
	}
	h.agent = rpc.NewClient(conn)
	t.Cleanup(func() {
		h.agent.Close()
		h.bells.Close()
		if err := t.within(fmt.Sprintf("end of the agent of node %d", h.index), command.Wait); err != nil {
			t.Errorf("agent of node %d: %v", h.index, err)
		}
	})
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", command.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	n := enterNamespace(t, file)
	n.try(t, func() error {
		return errors.Join(os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0), trustAddresses())
	})
	n.try(t, func() error {
		if err := testutil.SetUpLink("lo"); err != nil {
			return err
		}
		if err := netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods0"}}); err != nil {
			return err
		}
		pods := h.prefixes()
		return testutil.SetUpLink("pods0", netip.PrefixFrom(pods[0].Addr().Next(), 24), netip.PrefixFrom(pods[1].Addr().Next(), 64))
	})
	return n
}

// prepareSwitch creates the listeners and files that the Switches of a host inherit.
func (h *host) prepareSwitch() {
	t := h.lab
	t.Helper()
	h.ns.try(t, func() error {
		if err := testutil.SetUpLink("lo"); err != nil {
			return err
		}
		for range numListeners {
			listener, err := Listen(netip.AddrPortFrom(h.address, 0))
			if err != nil {
				return err
			}
			defer listener.Close()
			at := listener.Addr().(*net.TCPAddr).AddrPort()
			h.endpoints = append(h.endpoints, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
			file, err := listener.File()
			if err != nil {
				return err
			}
			h.listeners = append(h.listeners, file)
		}
		return nil
	})
	containers, err := net.ListenUnix("unix", &net.UnixAddr{Name: h.containersPath(), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	containers.SetUnlinkOnClose(false)
	defer containers.Close()
	if h.containers, err = containers.File(); err != nil {
		t.Fatal(err)
	}
	if h.state, err = NewState(); err != nil {
		t.Fatal(err)
	}
	if h.lifeline[0], h.lifeline[1], err = os.Pipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, file := range append(h.listeners, h.containers, h.state, h.lifeline[0], h.lifeline[1]) {
			file.Close()
		}
	})
}

func (h *host) containersPath() string {
	return filepath.Join(h.lab.dir, fmt.Sprintf("containers%d", h.index))
}

// namespace is a network namespace that lives on one locked thread.
type namespace struct {
	work chan func()
	file *os.File
}

func newNamespace(t testing.TB) *namespace { return enterNamespace(t, nil) }

// enterNamespace starts a thread in a namespace, which is new if file is nil.
func enterNamespace(t testing.TB, file *os.File) *namespace {
	t.Helper()
	n := &namespace{work: make(chan func()), file: file}
	ready := make(chan error)
	testutil.OnNewThread(func() {
		var err error
		if file != nil {
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		} else if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
			n.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
		ready <- err
		for f := range n.work {
			f()
		}
	})
	if err := <-ready; err != nil {
		t.Fatalf("enter a namespace: %v", err)
	}
	t.Cleanup(func() {
		n.file.Close()
		close(n.work)
	})
	return n
}

// try does f in the namespace, and fails the test on its error.
func (n *namespace) try(t testing.TB, f func() error) {
	t.Helper()
	var err error
	finished := make(chan struct{})
	n.work <- func() { defer close(finished); err = f() }
	<-finished
	if err != nil {
		t.Fatal(err)
	}
}

// pin restricts this thread, and what starts on it, to one core.
func pin(core int) error {
	var set unix.CPUSet
	set.Set(core % runtime.NumCPU())
	return unix.SchedSetaffinity(0, &set)
}
