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

// nft is the program that comes along, or Debian's where it was not built.
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
// the policies look at them.
func gauge(direction string) string {
	var chains strings.Builder
	for _, hook := range []string{"forward", "input"} {
		for when, priority := range map[string]int{"before": -10, "after": 10} {
			fmt.Fprintf(&chains, `chain %s-%s { type filter hook %s priority %d; iifname "lab*" ct direction %s counter comment "%s"; }`+"\n",
				hook, when, hook, priority, direction, when)
		}
	}
	return "table inet gauge\ndelete table inet gauge\ntable inet gauge {\n" + chains.String() + "}\n"
}

func (l *lab) counted(t *testing.T) (before, after int) {
	t.Helper()
	for line := range strings.Lines(nft(t, "list table inet gauge\n")) {
		fields := strings.Fields(line)
		for i, field := range fields {
			if field != "packets" {
				continue
			}
			n, err := strconv.Atoi(fields[i+1])
			l.must(err)
			if strings.Contains(line, `comment "before"`) {
				before += n
			} else {
				after += n
			}
		}
	}
	return before, after
}

// passes reports whether the packet that send sends gets through the node.
// Its direction is original or reply.
func (l *lab) passes(t *testing.T, what, direction string, send func()) bool {
	t.Helper()
	nft(t, gauge(direction))
	defer nft(t, "delete table inet gauge\n")
	send()
	testutil.Eventually(t, what+" has a packet at the node", func() bool {
		before, _ := l.counted(t)
		return before > 0
	})
	// Every packet passed the rules on its way, before it could be counted
	// here.
	before, after := l.counted(t)
	if after != 0 && after != before {
		t.Fatalf("%s: %d of %d packets passed", what, after, before)
	}
	return after > 0
}
