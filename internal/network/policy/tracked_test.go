package policy

import (
	"errors"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"berth.dev/berth/internal/testutil"
)

// sharesOf returns the shares of a lab with two places.
func sharesOf(full ...netip.Addr) Shares {
	return Shares{Links: []string{"lab0", "lab1"}, Names: 3, Queries: 20, Full: full}
}

// loadShares loads each script before and after the others: none removes what another one
// has loaded.
func loadShares(t *testing.T, s Shares) {
	t.Helper()
	for range 2 {
		for _, script := range []string{s.Floods(), s.Streams(), s.Connections()} {
			nft(t, script)
		}
	}
}

// A pod that has its share of conntrack gets no further connection, and another pod does.
func TestOnePodCannotFillConntrack(t *testing.T) {
	l := newLab(t, []string{xa, waIPv6}, []string{xb, zaIPv6})
	// Without rules that need it, the kernel remembers no connection.
	loadShares(t, sharesOf())
	l.must(netlink.ConntrackTableFlush(netlink.ConntrackTable)) // of other tests
	defer nft(t, "delete table inet "+sharesTable+"\n")
	for _, pods := range [][2]string{{xa, xb}, {waIPv6, zaIPv6}} {
		hostile, other := netip.MustParseAddr(pods[0]), netip.MustParseAddr(pods[1])
		port := uint16(1000)
		passes := func(from, to netip.Addr) bool {
			port++
			return l.passes(t, from.String()+" to port "+strconv.Itoa(int(port)), "original",
				func() { l.send(t, UDP, from, netip.AddrPortFrom(to, port)) })
		}
		const limit = 20
		for i := range 15 {
			if !passes(hostile, other) {
				t.Fatalf("connection %d of %v is refused", i, hostile)
			}
		}
		if !passes(other, hostile) {
			t.Fatalf("the first connection of %v is refused", other)
		}
		counts, err := CountConnections()
		l.must(err)
		if counts[hostile] != 15 || counts[other] != 1 {
			t.Fatalf("counted %v, want 15 of %v and 1 of %v", counts, hostile, other)
		}
		over := OverShare(map[netip.Addr]int{hostile: counts[hostile], other: counts[other]}, 0, limit)
		loadShares(t, sharesOf(over...))
		if passes(hostile, other) {
			t.Errorf("%v has more connections than its share", hostile)
		}
		if !passes(other, hostile) {
			t.Errorf("%v has no connection beside %v", other, hostile)
		}
		loadShares(t, sharesOf())
		if !passes(hostile, other) {
			t.Errorf("%v has no connection after it had its share", hostile)
		}
	}
}

func TestOverShare(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	for _, test := range []struct {
		a, b, others int
		want         []netip.Addr
	}{
		{a: 74, want: nil},
		{a: 75, want: []netip.Addr{a}},
		{a: 60, b: 10, want: nil},
		{a: 42, b: 43, want: nil},
		{a: 43, b: 43, want: []netip.Addr{a, b}},
		{a: 10, b: 1, others: 86, want: []netip.Addr{a}},
		{a: 1, others: 98, want: nil},
		{a: 1, others: 110, want: []netip.Addr{a}},
	} {
		counts := map[netip.Addr]int{}
		for pod, count := range map[netip.Addr]int{a: test.a, b: test.b} {
			if count > 0 {
				counts[pod] = count
			}
		}
		got := OverShare(counts, test.others, 100)
		if !reflect.DeepEqual(got, test.want) {
			t.Errorf("%d, %d and %d others: %v, want %v", test.a, test.b, test.others, got, test.want)
		}
	}
}

// A pod gets an error for a TCP connection to the name server above its bound, and has
// a further one when it has closed one. Another pod has one meanwhile.
func TestOnePodCannotTakeAllConnectionsToNameServer(t *testing.T) {
	l := newLab(t, []string{xa}, []string{xb})
	loadShares(t, sharesOf())
	defer nft(t, "delete table inet "+sharesTable+"\n")
	server := netip.AddrPortFrom(netip.MustParseAddr(dns), 53)
	listener, err := net.Listen("tcp", server.String())
	l.must(err)
	testutil.Serve(t, listener, func(conn net.Conn) { _, _ = conn.Read(make([]byte, 1)) })

	connect := func(from string) (conn net.Conn, err error) {
		l.at[netip.MustParseAddr(from)].try(t, func() error {
			conn, err = net.Dial("tcp", server.String())
			return nil
		})
		return conn, err
	}
	var open []net.Conn
	for range 3 {
		conn, err := connect(xa)
		l.must(err)
		defer conn.Close()
		open = append(open, conn)
	}
	loadShares(t, sharesOf())
	if conn, err := connect(xa); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("connection above the bound: %v, want a refusal", err)
		if err == nil {
			conn.Close()
		}
	}
	testutil.Eventually(t, "only the pod above the bound is listed", func() bool {
		if conn, err := connect(xa); err == nil {
			t.Error("a further connection above the bound")
			conn.Close()
		}
		pods, err := RejectedPods()
		l.must(err)
		return slices.Equal(pods, []netip.Addr{netip.MustParseAddr(xa)})
	})
	other, err := connect(xb)
	if err != nil {
		t.Errorf("another pod: %v", err)
	} else {
		other.Close()
	}
	open[0].Close()
	testutil.Eventually(t, "the pod has a connection after it closed one", func() bool {
		conn, err := connect(xa)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// Most of the queries that a pod sends faster than its bound are dropped before the name
// server reads them. The query of another pod arrives.
func TestFloodOfQueriesIsDropped(t *testing.T) {
	l := newLab(t, []string{xa}, []string{xb})
	shares := sharesOf()
	shares.Queries = 2 // a busy machine may take seconds to send all
	loadShares(t, shares)
	defer nft(t, "delete table inet "+sharesTable+"\n")
	server := netip.AddrPortFrom(netip.MustParseAddr(dns), 53)
	conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(server))
	l.must(err)
	defer conn.Close()
	l.must(conn.SetReadDeadline(time.Now().Add(time.Minute)))
	hostile, other := netip.MustParseAddr(xa), netip.MustParseAddr(xb)
	for range 100 {
		l.send(t, UDP, hostile, server)
	}
	l.send(t, UDP, other, server)
	of := map[netip.Addr]int{}
	for of[other] == 0 {
		_, from, err := conn.ReadFromUDPAddrPort(make([]byte, 512))
		l.must(err)
		of[from.Addr().Unmap()]++
	}
	// A flood has one query a second.
	if got := of[hostile]; got < 1 || got > 50 {
		t.Errorf("%d of 100 queries arrived, want at least 1 and few more", got)
	}
	testutil.Eventually(t, "only the hostile pod counts as a flood", func() bool {
		for range 20 {
			l.send(t, UDP, hostile, server)
		}
		pods, err := FloodingPods()
		l.must(err)
		return slices.Equal(pods, []netip.Addr{hostile})
	})
}
