package egress

import (
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"berth.dev/berth/internal/network/share"
	"berth.dev/berth/internal/testutil"
)

// TestFloodOfSYNs: a pod that floods an unresponsive address with SYNs holds at
// most the permitted attempts, and none once it stops. Meanwhile another pod
// connects with its first SYN.
func TestFloodOfSYNs(t *testing.T) {
	const most, flood = 64, 400 // fewer than the queue of the device takes
	l := newLab(t, func(c *Config) { c.Attempts = most })
	server := listenTCP(t, on(hostAddr), echo)
	var ports []uint16
	for i := range uint16(flood) {
		ports = append(ports, 1000+i)
	}
	l.forgeAll(netip.MustParseAddr("10.42.9.9"), ports, netip.AddrPortFrom(deadAddr, 80), header.TCPProtocolNumber)
	testutil.Eventually(t, "all SYNs are seen", func() bool { s := l.stats(); return s.Attempts+int64(s.Overflowed) >= flood })
	if open := l.stats().AttemptsOpen; open > most {
		t.Errorf("%d attempts to connect are remembered, want %d at most", open, most)
	}
	repeated := func() (count int) {
		l.onNode(func() { count = netstat(t, "TCPSynRetrans") })
		return count
	}
	before := repeated()
	l.mustDial("tcp", server.String())
	if repeated() != before {
		t.Error("the first SYN of a pod was ignored while another pod flooded")
	}
	testutil.Eventually(t, "the attempts end that the pod does not repeat", func() bool { return l.stats().AttemptsOpen == 0 })
}

// An attempt lasts as long as the pod's kernel repeats the SYN.
func TestAttemptLastsAsLongAsItsSYN(t *testing.T) {
	for name, repeats := range map[string][]time.Duration{
		"never repeated":      {},
		"of an older kernel":  {1, 3, 7, 15, 31, 63},
		"of Linux 6.5":        {1, 2, 3, 4, 5, 7, 11, 19, 35, 67},
		"of a busy node":      {2, 6, 14},
		"of a stopped client": {1, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newTestAttempts(1)
				id := stack.TransportEndpointID{RemoteAddress: stackAddress(podAddr), RemotePort: 1000}
				began, last := time.Now(), time.Duration(0)
				a.admit(t.Context(), id, 0, func() bool { return true })
				attempt := a.find(id)
				for _, repeat := range repeats {
					last = repeat * time.Second
					time.Sleep(time.Until(began.Add(last)))
					if attempt.ctx.Err() != nil {
						t.Fatalf("the attempt had ended when the SYN of %v came", last)
					}
					a.admit(t.Context(), id, 0, func() bool { t.Errorf("the SYN of %v was forwarded", last); return true })
				}
				<-attempt.ctx.Done()
				if took := time.Since(began); took != 2*last+repeatWithin {
					t.Errorf("the attempt ended after %v, want %v", took, 2*last+repeatWithin)
				}
			})
		})
	}
}

// When all places are taken, pods get equal shares, and the oldest attempts make
// room.
func TestAttemptsAreSharedFairly(t *testing.T) {
	a := newTestAttempts(12)
	connection := func(pod byte, port uint16) stack.TransportEndpointID {
		return stack.TransportEndpointID{RemoteAddress: stackAddress(netip.AddrFrom4([4]byte{10, 0, 0, pod})), RemotePort: port}
	}
	ask := func(pod byte, port uint16) {
		a.admit(t.Context(), connection(pod, port), 0, func() bool { return true })
	}
	shares := func() string {
		var text string
		for pod := range byte(3) {
			text += fmt.Sprint(len(a.waiting[netip.AddrFrom4([4]byte{10, 0, 0, pod})]), " ")
		}
		return text
	}
	for _, step := range []struct {
		pod  byte
		want string
	}{{0, "12 0 0 "}, {1, "6 6 0 "}, {0, "6 6 0 "}, {2, "4 4 4 "}, {1, "4 4 4 "}} {
		for port := range uint16(100) {
			ask(step.pod, 100*port)
		}
		if got := shares(); got != step.want {
			t.Errorf("after 100 attempts of pod %d the shares are %s, want %s", step.pod, got, step.want)
		}
	}
	if first := a.find(connection(0, 0)); first.ctx.Err() == nil {
		t.Error("the oldest attempt of the pod with the most goes on")
	}
	if last := a.find(connection(0, 1100)); last.ctx.Err() != nil {
		t.Error("the newest attempt of the pod with the most was cancelled")
	}
	for _, waiting := range a.waiting {
		for _, attempt := range waiting {
			attempt.givenUp.Stop()
		}
	}
}

func newTestAttempts(most int) *attempts {
	e := &engine{Config: Default()}
	e.Attempts, e.Counters, e.shares = most, new(Counters), share.New(most)
	return newAttempts(e)
}

// TestShortageIsNotRefusal: when berth lacks descriptors, a pod gets no refusal, so
// its kernel tries again.
func TestShortageIsNotRefusal(t *testing.T) {
	e := &engine{Config: Default(), shares: share.New(1)}
	for _, err := range []error{unix.EMFILE, unix.ENFILE, unix.ENOBUFS, unix.ENOMEM} {
		if e.reject(netip.AddrPort{}, netip.AddrPort{}, 0, fmt.Errorf("dial: %w", err)) {
			t.Errorf("a connection is reset because of %v", err)
		}
	}
}

// When there are no descriptors, the log names the pod with most connections, once.
func TestPodWithMostConnectionsIsNamedInShortage(t *testing.T) {
	for name, lack := range map[string]func(e *engine, pod, remote netip.AddrPort, err error){
		"TCP": func(e *engine, pod, remote netip.AddrPort, err error) { e.reject(pod, remote, 0, err) },
		"UDP": func(e *engine, pod, remote netip.AddrPort, err error) {
			e.rejectDatagram(flowKey{header.UDPProtocolNumber, pod, remote}, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			e := &engine{Config: Default(), shares: share.New(100)}
			e.Counters, e.Log = new(Counters), slog.New(slog.NewTextHandler(&log, nil))
			e.shares.Add(podAddr)
			greedy := podAddr.Next()
			e.shares.Add(greedy)
			e.shares.Add(greedy)
			for _, err := range []error{unix.ENOMEM, unix.EMFILE, unix.EMFILE, unix.ENFILE} {
				lack(e, netip.AddrPortFrom(podAddr, 1000), netip.AddrPortFrom(hostAddr, 80), fmt.Errorf("open a socket: %w", err))
			}
			if got := strings.Count(log.String(), "most connections belong to pod "+greedy.String()); got != 1 {
				t.Errorf("the log names the pod %d times, want once: %s", got, &log)
			}
		})
	}
}
