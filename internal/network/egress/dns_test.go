package egress

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"berth.dev/berth/internal/network/share"
	"berth.dev/berth/internal/testutil"
)

// query returns a DNS message with the id. Its question is not a valid one.
func query(id uint16) []byte {
	message := make([]byte, dnsHeader, dnsHeader+8)
	binary.BigEndian.PutUint16(message, id)
	return append(message, "question"...)
}

// answerWith returns an answer like a DNS server's, with a text that the test
// recognizes.
func answerWith(text string, code byte) func([]byte, net.Addr) []byte {
	return func(query []byte, _ net.Addr) []byte {
		answer := append(slices.Clone(query[:dnsHeader]), text...)
		answer[2] |= dnsResponse
		answer[3] = code
		return answer
	}
}

// resolvConf makes egress use the servers. The port of a resolver is fixed, so each
// server gets its own loopback address.
func resolvConf(t *testing.T, servers ...string) func(*Config) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	writeResolvConf(t, path, servers...)
	return func(c *Config) { c.ResolvConf = path }
}

func writeResolvConf(t *testing.T, path string, servers ...string) {
	t.Helper()
	content := "search example.org\n"
	for _, server := range servers {
		content += "nameserver " + server + "\n"
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func dnsAt(addr string) string { return net.JoinHostPort(addr, fmt.Sprint(dnsPort)) }

func (l *lab) ask(id uint16) string {
	l.Helper()
	conn := l.mustDial("udp", netip.AddrPortFrom(gateway, dnsPort).String())
	answer := exchangeDatagram(l, conn, query(id))
	if binary.BigEndian.Uint16(answer) != id || answer[2]&dnsResponse == 0 {
		l.Fatalf("the answer to %d is % x", id, answer)
	}
	if code := answer[3] & dnsCode; code != 0 {
		return fmt.Sprint("code ", code)
	}
	return string(answer[dnsHeader:])
}

func TestDNSFromLoopbackResolver(t *testing.T) {
	listenUDP(t, dnsAt("127.0.0.53"), answerWith("stub", 0))
	l := newLab(t, resolvConf(t, "127.0.0.53"))
	if got := l.ask(1); got != "stub" {
		t.Errorf("answer %q", got)
	}
	testutil.Eventually(t, "the query is over", func() bool { return l.stats().QueriesOpen == 0 })
	if s := l.stats(); s.Queries != 1 || s.Flows != 0 {
		t.Errorf("counted %+v", s)
	}
}

func TestDNSOverTCP(t *testing.T) {
	listenTCP(t, dnsAt("127.0.0.54"), func(conn *net.TCPConn) {
		var length [2]byte
		for {
			if _, err := io.ReadFull(conn, length[:]); err != nil {
				return
			}
			message := make([]byte, binary.BigEndian.Uint16(length[:]))
			io.ReadFull(conn, message)
			answer := answerWith(strings.Repeat("long", 10000), 0)(message, nil)
			conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...))
		}
	})
	// The first server does not exist.
	l := newLab(t, resolvConf(t, "127.0.0.99", "127.0.0.54"))
	conn := l.mustDial("tcp", netip.AddrPortFrom(gateway, dnsPort).String())
	for id := range uint16(3) {
		message := query(id)
		conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(message))), message...))
		var length [2]byte
		if _, err := io.ReadFull(conn, length[:]); err != nil {
			t.Fatal(err)
		}
		answer := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(conn, answer); err != nil || binary.BigEndian.Uint16(answer) != id || len(answer) != dnsHeader+40000 {
			t.Errorf("answer %d has %d bytes, %v", id, len(answer), err)
		}
	}
}

// TestDNSNextServer: when a server is silent, absent or refuses, the next one
// answers, and is the first choice from then on.
func TestDNSNextServer(t *testing.T) {
	asked := make(chan struct{}, 10)
	listenUDP(t, dnsAt("127.0.0.55"), func([]byte, net.Addr) []byte { asked <- struct{}{}; return nil })
	listenUDP(t, dnsAt("127.0.0.56"), answerWith("", codeRefused))
	listenUDP(t, dnsAt("127.0.0.57"), answerWith("third", 0))
	l := newLab(t, resolvConf(t, "127.0.0.55", "127.0.0.56", "127.0.0.57"))
	for id := range uint16(3) {
		if got := l.ask(id); got != "third" {
			t.Errorf("answer %q", got)
		}
	}
	if len(asked) != 1 {
		t.Errorf("the silent server was asked %d times", len(asked))
	}
}

func TestDNSWithoutAnswer(t *testing.T) {
	listenUDP(t, dnsAt("127.0.0.58"), answerWith("", codeRefused))
	l := newLab(t, resolvConf(t, "127.0.0.99", "127.0.0.58"))
	if got := l.ask(1); got != "code 5" {
		t.Errorf("answer of the only server that answers: %s", got)
	}
	nobody := newLab(t, resolvConf(t, "127.0.0.99"))
	if got := nobody.ask(2); got != "code 2" {
		t.Errorf("answer where no server answers: %s", got)
	}
}

// While a silent server holds the queries of one pod, another pod can still ask.
func TestOnePodCannotTakeAllQueries(t *testing.T) {
	var silent atomic.Int64
	listenUDP(t, dnsAt("127.0.0.62"), func([]byte, net.Addr) []byte { silent.Add(1); return nil })
	path := filepath.Join(t.TempDir(), "resolv.conf")
	writeResolvConf(t, path, "127.0.0.62")
	e := fuzzedEngine(t)
	e.dns = newResolver(path)
	e.dns.shares = share.New(16)
	e.Log = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithCancel(t.Context())
	for id := range uint16(100) {
		e.answerQuery(ctx, netip.AddrPortFrom(podAddr, 1000), query(id))
	}
	if open := e.Counters.Stats().QueriesOpen; open != 12 {
		t.Errorf("one pod has %d queries under way, want 12", open)
	}
	e.answerQuery(ctx, netip.MustParseAddrPort("10.42.9.9:1000"), query(200))
	testutil.Eventually(t, "the query of another pod is asked", func() bool { return silent.Load() >= 13 })
	if overflowed := e.Counters.Stats().Overflowed; overflowed != 88 {
		t.Errorf("%d queries were dropped, want 88", overflowed)
	}
	cancel()
	e.workers.wait()
	if e.dns.shares.Taken() != 0 {
		t.Errorf("%d places are left", e.dns.shares.Taken())
	}
}

// The notice tells the node's own queries from the queries of a pod.
func TestNoticeOfDroppedQueries(t *testing.T) {
	e := fuzzedEngine(t)
	e.Node = netip.MustParseAddr("10.42.0.1")
	e.dns.shares = share.New(16)
	var log strings.Builder
	e.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, from := range []netip.Addr{e.Node, podAddr} {
		for e.dns.shares.Take(from) {
		}
		e.answerQuery(t.Context(), netip.AddrPortFrom(from, 1000), query(1))
	}
	for _, want := range []string{"of node 10.42.0.1, whose CoreDNS asks for the pods: too many", fmt.Sprintf("of pod %v: too many", podAddr)} {
		if strings.Count(log.String(), "dropped DNS queries "+want) != 1 {
			t.Errorf("no notice has %q:\n%s", want, log.String())
		}
	}
}

// A query ends after a few seconds, but all servers are asked.
func TestServersAreAskedAgainForALimitedTime(t *testing.T) {
	for options, want := range map[string]map[int]int{ // rounds by the number of servers
		"":                     {1: 2, 2: 1, 3: 1},
		"timeout:1 attempts:9": {1: 4, 2: 2, 3: 1, 5: 1},
		"timeout:1 attempts:1": {1: 1, 2: 1},
	} {
		for servers, rounds := range want {
			path := filepath.Join(t.TempDir(), "resolv.conf")
			writeResolvConf(t, path, slices.Repeat([]string{"192.0.2.53"}, servers)...)
			file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := fmt.Fprintln(file, "options", options); err != nil {
				t.Fatal(err)
			}
			file.Close()
			if got := newResolver(path).read(); got.Attempts != rounds || len(got.Servers) != servers {
				t.Errorf("%q: %d servers are asked %d times, want %d", options, len(got.Servers), got.Attempts, rounds)
			}
		}
	}
}

func TestDNSFollowsResolvConf(t *testing.T) {
	listenUDP(t, dnsAt("127.0.0.59"), answerWith("old", 0))
	listenUDP(t, dnsAt("127.0.0.60"), answerWith("new", 0))
	var path string
	l := newLab(t, resolvConf(t, "127.0.0.59"), func(c *Config) { path = c.ResolvConf })
	if got := l.ask(1); got != "old" {
		t.Errorf("answer %q", got)
	}
	// Replace the file, as network managers do.
	writeResolvConf(t, path+".new", "127.0.0.60")
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the new resolver is asked", func() bool { return l.ask(2) == "new" })
}

func TestDNSPassesTruncation(t *testing.T) {
	listenUDP(t, dnsAt("127.0.0.61"), func(query []byte, from net.Addr) []byte {
		answer := answerWith("cut", 0)(query, from)
		answer[2] |= 0x02
		return answer
	})
	l := newLab(t, resolvConf(t, "127.0.0.61"))
	conn := l.mustDial("udp", netip.AddrPortFrom(gateway, dnsPort).String())
	if answer := exchangeDatagram(t, conn, query(3)); answer[2]&0x02 == 0 {
		t.Errorf("answer % x is not marked as truncated", answer)
	}
}

func TestHostResolvers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	content := "# a comment\ndomain example.com\nsearch a.example b.example\nnameserver 192.0.2.53\nnameserver 2001:db8::53\nnameserver fe80::1%eth0\nnameserver nonsense\noptions ndots:3 timeout:1 attempts:4 edns0\n"
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := HostResolvers(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Resolvers{
		Servers:  []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53"), netip.MustParseAddrPort("[2001:db8::53]:53"), netip.MustParseAddrPort("[fe80::1%eth0]:53")},
		Search:   []string{"a.example", "b.example"},
		Ndots:    3,
		Timeout:  time.Second,
		Attempts: 4,
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if _, err := HostResolvers(path + ".absent"); !os.IsNotExist(err) && !strings.Contains(fmt.Sprint(err), "no such file") {
		t.Errorf("absent file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := HostResolvers(path); err != nil || fmt.Sprint(got.Servers) != "[127.0.0.1:53]" {
		t.Errorf("empty file: %v, %v", got.Servers, err)
	}
}
