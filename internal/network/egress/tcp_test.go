package egress

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"berth.dev/berth/internal/testutil"
)

func echo(conn *net.TCPConn) {
	io.Copy(conn, conn)
	conn.CloseWrite()
}

func on(addr netip.Addr) string { return netip.AddrPortFrom(addr, 0).String() }

func TestTCPEchoAndHalfClose(t *testing.T) {
	for _, addr := range []netip.Addr{hostAddr, hostIPv6} {
		t.Run(addr.String(), func(t *testing.T) {
			l := newLab(t)
			server := listenTCP(t, on(addr), func(conn *net.TCPConn) {
				// The whole request arrives, with its end, before the answer.
				request, _ := io.ReadAll(conn)
				fmt.Fprintf(conn, "got %s", request)
			})
			conn := l.mustDial("tcp", server.String())
			if got, want := conn.RemoteAddr().String(), server.String(); got != want {
				t.Errorf("connected to %s, want %s", got, want)
			}
			io.WriteString(conn, "hello")
			conn.(*net.TCPConn).CloseWrite()
			answer, err := io.ReadAll(conn)
			if err != nil || string(answer) != "got hello" {
				t.Errorf("read %q, %v", answer, err)
			}
			testutil.Eventually(t, "connection ends", func() bool { return l.stats().ConnectionsOpen == 0 })
		})
	}
}

func TestTCPServerHalfClose(t *testing.T) {
	l := newLab(t)
	received := make(chan string, 1)
	server := listenTCP(t, on(hostAddr), func(conn *net.TCPConn) {
		io.WriteString(conn, "bye")
		conn.CloseWrite()
		rest, _ := io.ReadAll(conn)
		received <- string(rest)
	})
	conn := l.mustDial("tcp", server.String())
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "bye" {
		t.Fatalf("read %q, %v", answer, err)
	}
	// The other direction is still open.
	io.WriteString(conn, "late")
	conn.Close()
	if got := <-received; got != "late" {
		t.Errorf("server got %q after its half close", got)
	}
}

func TestTCPFailures(t *testing.T) {
	l := newLab(t)
	closed, _ := net.Listen("tcp", on(hostAddr))
	closed.Close()
	for to, want := range map[string]error{
		closed.Addr().String(): unix.ECONNREFUSED,
		"192.0.2.1:80":         unix.EHOSTUNREACH, // a route of type unreachable
		"198.51.100.1:80":      unix.ENETUNREACH,  // no route
		"[2001:db8:1::1]:80":   unix.ENETUNREACH,
	} {
		_, err := l.dial("tcp", to)
		if !errors.Is(err, want) {
			t.Errorf("dial %s: %v, want %v", to, err, want)
		}
	}
	if got := l.stats().Failed; got != 4 {
		t.Errorf("%d failures counted, want 4", got)
	}
}

func TestTCPReset(t *testing.T) {
	l := newLab(t)
	ended := make(chan error, 1)
	server := listenTCP(t, on(hostAddr), func(conn *net.TCPConn) {
		var one [1]byte
		io.ReadFull(conn, one[:])
		if one[0] == 'r' {
			conn.SetLinger(0)
			return
		}
		conn.Write(one[:])
		_, err := conn.Read(one[:])
		ended <- err
	})
	conn := l.mustDial("tcp", server.String())
	io.WriteString(conn, "r")
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("server reset; pod read: %v", err)
	}
	conn = l.mustDial("tcp", server.String())
	io.WriteString(conn, "x")
	// A reset overtakes what was sent before it, so wait until it arrived.
	io.ReadFull(conn, make([]byte, 1))
	conn.(*net.TCPConn).SetLinger(0)
	conn.Close()
	if err := <-ended; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("pod reset; server read: %v", err)
	}
}

func TestTCPBigTransferBothWays(t *testing.T) {
	for _, test := range []struct {
		mtu  int
		addr netip.Addr
	}{{65520, hostAddr}, {1500, hostAddr}, {65520, hostIPv6}, {1500, hostIPv6}} {
		t.Run(fmt.Sprint("mtu ", test.mtu, " to ", test.addr), func(t *testing.T) {
			l := newLab(t)
			l.setMTU(test.mtu)
			server := listenTCP(t, on(test.addr), echo)
			conn := l.mustDial("tcp", server.String())
			const size = 64 << 20
			sent := sha256.New()
			var sending sync.WaitGroup
			sending.Go(func() {
				source := rand.NewChaCha8([32]byte{1})
				if _, err := io.CopyN(io.MultiWriter(conn, sent), source, size); err != nil {
					t.Errorf("send: %v", err)
				}
				conn.(*net.TCPConn).CloseWrite()
			})
			received := sha256.New()
			n, err := io.Copy(received, conn)
			sending.Wait()
			if err != nil || n != size || !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
				t.Errorf("got %d of %d bytes, same content %t, %v", n, size, bytes.Equal(sent.Sum(nil), received.Sum(nil)), err)
			}
			if s := l.stats(); s.BytesFromPods != size || s.BytesToPods != size {
				t.Errorf("counted %d bytes from and %d to pods", s.BytesFromPods, s.BytesToPods)
			}
		})
	}
}

// setMTU sets what the node's own TCP uses as MTU.
func (l *lab) setMTU(mtu int) {
	l.onNode(func() {
		link, err := netlink.LinkByName("out0")
		if err == nil {
			err = netlink.LinkSetMTU(link, mtu)
		}
		if err != nil {
			l.Errorf("set MTU %d: %v", mtu, err)
		}
	})
}

func TestTCPManyConnections(t *testing.T) {
	l := newLab(t)
	server := listenTCP(t, on(hostAddr), echo)
	const many, size = 500, 100_000
	conns := make([]net.Conn, many)
	for i := range conns {
		conns[i] = l.mustDial("tcp", server.String())
	}
	if got := l.stats().ConnectionsOpen; got != many {
		t.Errorf("%d connections are open, want %d", got, many)
	}
	var all sync.WaitGroup
	for i, conn := range conns {
		all.Go(func() {
			message := bytes.Repeat([]byte{byte(i)}, size)
			go func() {
				conn.Write(message)
				conn.(*net.TCPConn).CloseWrite()
			}()
			if answer, err := io.ReadAll(conn); err != nil || !bytes.Equal(answer, message) {
				t.Errorf("connection %d: %d bytes, %v", i, len(answer), err)
			}
		})
	}
	all.Wait()
	testutil.Eventually(t, "connections end", func() bool { return l.stats().ConnectionsOpen == 0 })
}

// TestTCPPortsAreReused checks that a pod can use a port again at once when the
// outside has closed the connection before: many short ones come to that.
func TestTCPPortsAreReused(t *testing.T) {
	const ports, connections, few = 512, 500, 10
	l := newLab(t)
	server := listenTCP(t, on(hostAddr), func(*net.TCPConn) {})
	l.onNode(func() {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", fmt.Appendf(nil, "40000 %d", 40000+ports-1), 0); err != nil {
			t.Error(err)
		}
	})
	repeated := func() (count int) {
		l.onNode(func() { count = netstat(t, "TCPSynRetrans") })
		return count
	}
	before := repeated()
	for i := range connections {
		conn := l.mustDial("tcp", server.String())
		if _, err := io.ReadAll(conn); err != nil {
			t.Fatal(err)
		}
		conn.Close()
		if now := repeated() - before; now > few { // some may be a busy machine's
			t.Fatalf("%d of %d SYNs were ignored", now, i+1)
		}
	}
}

// netstat returns one of the extended TCP counters of the thread's network namespace.
func netstat(t *testing.T, name string) int {
	text, err := os.ReadFile("/proc/thread-self/net/netstat")
	if err != nil {
		t.Error(err)
		return 0
	}
	names, rest, _ := strings.Cut(string(text), "\n")
	values, _, _ := strings.Cut(rest, "\n")
	i := slices.Index(strings.Fields(names), name)
	if i < 0 {
		t.Errorf("the kernel does not count %s", name)
		return 0
	}
	value, err := strconv.Atoi(strings.Fields(values)[i])
	if err != nil {
		t.Error(err)
	}
	return value
}

func TestTCPConnectionLimit(t *testing.T) {
	l := newLab(t, func(c *Config) { c.Connections = 2 })
	server := listenTCP(t, on(hostAddr), echo)
	first := l.mustDial("tcp", server.String())
	l.mustDial("tcp", server.String())
	if _, err := l.dial("tcp", server.String()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("third of two connections: %v", err)
	}
	if got := l.stats().Overflowed; got != 1 {
		t.Errorf("%d overflows counted", got)
	}
	if got := l.stats().Attempts; got != 2 {
		t.Errorf("%d connections were attempted, want 2: one too many costs a packet only", got)
	}
	first.Close()
	testutil.Eventually(t, "a connection ends", func() bool { return l.stats().ConnectionsOpen == 1 })
	l.mustDial("tcp", server.String())
}

// A pod that does not read must not make egress buffer what the outside sends.
func TestTCPBackPressure(t *testing.T) {
	l := newLab(t)
	var mu sync.Mutex
	written := 0
	stalled := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return written > 0
	}
	server := listenTCP(t, on(hostAddr), func(conn *net.TCPConn) {
		conn.SetWriteBuffer(64 << 10)
		block := make([]byte, 64<<10)
		for {
			n, err := conn.Write(block)
			mu.Lock()
			written += n
			mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	conn := l.mustDial("tcp", server.String())
	testutil.Eventually(t, "the server writes", stalled)
	last, same := -1, 0
	testutil.Eventually(t, "the server is held up", func() bool {
		mu.Lock()
		defer mu.Unlock()
		if written == last {
			same++
		} else {
			last, same = written, 0
		}
		return same > 40
	})
	if taken := l.stats().BytesToPods; taken > 16<<20 {
		t.Errorf("egress took %d bytes for a pod that does not read", taken)
	}
	conn.Close()
}

func TestCancelEndsEverything(t *testing.T) {
	l := newLab(t) // which checks for goroutines and descriptors at its end
	server := listenTCP(t, on(hostAddr), echo)
	udp := listenUDP(t, on(hostAddr), func(query []byte, _ net.Addr) []byte { return query })
	idle := l.mustDial("tcp", server.String())
	busy := l.mustDial("tcp", server.String())
	var writing sync.WaitGroup
	writing.Go(func() {
		for {
			if _, err := busy.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	flow := l.mustDial("udp", udp.String())
	flow.Write([]byte("x"))
	if _, err := flow.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	l.cancel()
	l.wait()
	if l.err != nil {
		t.Errorf("Run after cancel: %v", l.err)
	}
	if s := l.stats(); s.ConnectionsOpen != 0 || s.FlowsOpen != 0 {
		t.Errorf("after Run, open: %+v", s)
	}
	// The connections were reset, not left to hang.
	if _, err := idle.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("idle connection after Run: %v", err)
	}
	busy.Close()
	writing.Wait()
}

func TestDeviceRemoved(t *testing.T) {
	l := newLab(t)
	server := listenTCP(t, on(hostAddr), echo)
	l.mustDial("tcp", server.String())
	l.onNode(func() {
		link, err := netlink.LinkByName("out0")
		if err == nil {
			err = netlink.LinkDel(link)
		}
		if err != nil {
			t.Error(err)
		}
	})
	l.wait()
	if l.err == nil || !errors.Is(l.err, unix.EBADFD) {
		t.Errorf("Run after its device was removed: %v", l.err)
	}
}

// A pod that sends a SYN and then nothing must not hold up the end.
func TestCancelDuringHandshake(t *testing.T) {
	l := newLab(t)
	accepted := make(chan struct{})
	server := listenTCP(t, on(hostAddr), func(conn *net.TCPConn) {
		close(accepted)
		io.Copy(io.Discard, conn)
	})
	nobody := netip.MustParseAddr("10.42.9.9")
	l.forge(nobody, server, header.TCPProtocolNumber)
	<-accepted
	testutil.Eventually(t, "the handshake with the pod begins", func() bool { return l.stats().ConnectionsOpen == 1 })
	l.cancel()
	l.wait()
}

// The supervisor keeps the device when the role ends, and starts it again.
func TestRestart(t *testing.T) {
	l := newLab(t)
	server := listenTCP(t, on(hostAddr), echo)
	old := l.mustDial("tcp", server.String())
	l.cancel()
	l.wait()
	l.start()
	if _, err := old.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("connection of the run before: %v", err)
	}
	conn := l.mustDial("tcp", server.String())
	io.WriteString(conn, "again")
	conn.(*net.TCPConn).CloseWrite()
	if answer, err := io.ReadAll(conn); err != nil || string(answer) != "again" {
		t.Errorf("read %q, %v", answer, err)
	}
}
