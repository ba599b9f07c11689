package policy

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// TestMain runs the tests in a separate network namespace, which stands for a
// node.
func TestMain(m *testing.M) {
	testutil.MainInNamespaces(m, func() error {
		for _, name := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
			if err := os.WriteFile("/proc/sys/net/"+name, []byte("1"), 0); err != nil {
				return err
			}
		}
		return testutil.SetUpLink("lo", netip.MustParsePrefix(dns+"/32"))
	})
}

// nft runs a script with the nft that berth contains, or with the host's if berth's was
// not built, and returns its output.
func nft(t testing.TB, script string) string {
	t.Helper()
	program := "../../../libexec/berth/nft"
	if _, err := os.Stat(program); err != nil {
		program = "nft"
	}
	command := exec.Command(program, "-f", "-")
	command.Stdin = strings.NewReader(script)
	out, err := command.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs nft: 'make' builds it")
	}
	if err != nil {
		t.Fatalf("nft: %v: %s\n%s", err, out, script)
	}
	return string(out)
}

// lab is a node and the addresses that it forwards packets between. Each address
// is in its own namespace behind a pair of interfaces.
type lab struct {
	testing.TB
	at map[netip.Addr]*place
}

// place runs functions in a network namespace.
type place struct{ do chan func() }

func newLab(t *testing.T, places ...[]string) *lab {
	testutil.Require(t, testutil.UserNS)
	l := &lab{t, map[netip.Addr]*place{}}
	for i, addresses := range places {
		l.add(fmt.Sprintf("lab%d", i), addresses)
	}
	return l
}

func (l *lab) add(link string, texts []string) {
	p := &place{make(chan func())}
	opened := make(chan error)
	l.Cleanup(func() { close(p.do) })
	var inside int
	testutil.OnNewThread(func() {
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			inside, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		opened <- err
		for f := range p.do {
			f()
		}
	})
	l.must(<-opened)
	defer unix.Close(inside)
	l.must(netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: link}, PeerName: "eth0", PeerNamespace: netlink.NsFd(inside),
	}))
	l.Cleanup(func() {
		if found, err := netlink.LinkByName(link); err == nil {
			l.must(netlink.LinkDel(found))
		}
	})
	gateways := []netip.Prefix{netip.MustParsePrefix("169.254.1.1/32"), netip.MustParsePrefix("fe80::1/64")}
	l.must(testutil.SetUpLink(link, gateways...))
	outer, err := netlink.LinkByName(link)
	l.must(err)
	var addresses []netip.Prefix
	for _, text := range texts {
		address := netip.MustParseAddr(text)
		l.at[address] = p
		single := netip.PrefixFrom(address, address.BitLen())
		addresses = append(addresses, single)
		l.must(netlink.RouteAdd(&netlink.Route{LinkIndex: outer.Attrs().Index, Dst: ipNet(single), Scope: unix.RT_SCOPE_LINK}))
	}
	p.try(l, func() error {
		if err := testutil.SetUpLink("lo"); err != nil {
			return err
		}
		if err := testutil.SetUpLink("eth0", addresses...); err != nil {
			return err
		}
		inner, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		for _, gateway := range gateways {
			anywhere := netip.PrefixFrom(gateway.Addr(), 0).Masked()
			err = errors.Join(err, netlink.RouteAdd(&netlink.Route{
				LinkIndex: inner.Attrs().Index, Dst: ipNet(anywhere), Gw: gateway.Addr().AsSlice(), Flags: int(netlink.FLAG_ONLINK),
			}))
		}
		return err
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (l *lab) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

// try runs a function in the place's namespace.
func (p *place) try(t testing.TB, f func() error) {
	t.Helper()
	done := make(chan error)
	p.do <- func() { done <- f() }
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// gauge counts the packets of one direction of connections, before and after
// the policies look at them. Only packets with gaugeMark, which the first count
// sets, are in the second count.
func gauge(direction string) string {
	var chains strings.Builder
	for _, hook := range []string{"forward", "input"} {
		for _, chain := range []struct {
			when     string
			priority int
			rule     string
		}{
			{"before", -10, fmt.Sprintf("meta mark set %d counter", gaugeMark)},
			{"after", 10, fmt.Sprintf("meta mark %d counter", gaugeMark)},
		} {
			fmt.Fprintf(&chains, `chain %s-%s { type filter hook %s priority %d; iifname "lab*" ct direction %s %s comment "%s"; }`+"\n",
				hook, chain.when, hook, chain.priority, direction, chain.rule, chain.when)
		}
	}
	return "table inet gauge\ndelete table inet gauge\ntable inet gauge {\n" + chains.String() + "}\n"
}

const gaugeMark = 4711

// counted returns the number of packets that were counted before or after the policies.
func (l *lab) counted(t *testing.T, when string) (packets int) {
	t.Helper()
	for line := range strings.Lines(nft(t, "list table inet gauge\n")) {
		if !strings.Contains(line, `comment "`+when+`"`) {
			continue
		}
		fields := strings.Fields(line)
		for i, field := range fields {
			if field == "packets" {
				n, err := strconv.Atoi(fields[i+1])
				l.must(err)
				packets += n
			}
		}
	}
	return packets
}

// passes reports whether the packet that send sends gets through the node.
// Its direction is original or reply.
func (l *lab) passes(t *testing.T, what, direction string, send func()) bool {
	t.Helper()
	nft(t, gauge(direction))
	defer nft(t, "delete table inet gauge\n")
	send()
	before := 0
	testutil.Eventually(t, what+" has a packet at the node", func() bool {
		before = l.counted(t, "before")
		return before > 0
	})
	// Another processor may still be between the two counts of a packet.
	l.must(packetsAreThrough())
	// A TCP socket may have sent more packets since, so after may be the larger number.
	after := l.counted(t, "after")
	if after != 0 && after < before {
		t.Fatalf("%s: %d of %d packets passed", what, after, before)
	}
	return after > 0
}

// packetsAreThrough waits until all rules have judged every packet that a rule has
// counted. The kernel handles a packet in one RCU read-side critical section
// (process_backlog), and this system call waits for the end of all that have begun.
func packetsAreThrough() error {
	const global = 1 // MEMBARRIER_CMD_GLOBAL, Linux 4.3; x/sys does not name it
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		return os.NewSyscallError("membarrier", errno)
	}
	return nil
}
