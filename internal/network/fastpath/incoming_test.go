package fastpath

import (
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/network/fastpath/sock"
)

// nothingPermitted is a Policy.
type nothingPermitted struct{}

func (nothingPermitted) Permits(netip.Addr, netip.AddrPort) bool        { return false }
func (nothingPermitted) PermitsOutside(netip.Addr, netip.AddrPort) bool { return false }

var (
	otherPod = netip.MustParseAddrPort("10.0.0.2:1000")
	ownPod   = netip.MustParseAddrPort("10.0.1.2:2000")
)

// newInbound returns the inbound of node 1 of two, with a pod at ownPod.
func newInbound(t *testing.T) *inbound {
	t.Helper()
	control, err := newControl(Config{
		Nodes: []Node{{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}}, {Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.1.0/24")}}},
		Self:  1, Key: make([]byte, 32), Policy: nothingPermitted{},
	}, enforced{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := newReactor()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.close)
	sweep := newAlarm(func() {})
	t.Cleanup(sweep.close)
	return &inbound{
		shared:  &shared{log: slog.New(slog.NewTextHandler(io.Discard, nil)), checks: enforced{}, reactor: made},
		control: control, sweep: sweep,
		pods:    &pods{byAddress: map[netip.Addr]*pod{ownPod.Addr(): {address: ownPod.Addr()}}},
		pending: map[*incoming]struct{}{}, parked: map[bellKey]*incoming{},
	}
}

// addPending adds a connection, and returns it with the other node's end and the challenge.
func addPending(t *testing.T, in *inbound) (c *incoming, other int, sent challenge) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[1]) })
	in.add(fds[0])
	if n, err := unix.Read(fds[1], sent[:]); n != challengeLen {
		t.Fatalf("%d bytes of the challenge: %v", n, err)
	}
	for c = range in.pending {
		return c, fds[1], sent
	}
	t.Fatal("not pending")
	return nil, -1, sent
}

func send(t *testing.T, to int, b []byte) {
	t.Helper()
	if n, err := unix.Write(to, b); n != len(b) {
		t.Fatalf("%d bytes sent: %v", n, err)
	}
}

// TestRefusedPreambles has connections end in inDone from inPending.
func TestRefusedPreambles(t *testing.T) {
	nowhere := netip.AddrPortFrom(netip.MustParseAddr("10.0.1.9"), 2000)
	for name, c := range map[string]struct {
		preamble preamble
		forge    bool
		counted  count
		answered bool
	}{
		"a forged seal":           {preamble{from: 0, to: 1, source: otherPod, target: ownPod}, true, countForged, false},
		"another node's pod":      {preamble{from: 0, to: 1, source: ownPod, target: ownPod}, false, countForged, false},
		"for another node":        {preamble{from: 0, to: 0, source: otherPod, target: ownPod}, false, countForged, false},
		"a pod that is not here":  {preamble{from: 0, to: 1, source: otherPod, target: nowhere}, false, countNoPod, true},
		"not permitted by policy": {preamble{from: 0, to: 1, source: otherPod, target: ownPod}, false, countPolicy, true},
	} {
		t.Run(name, func(t *testing.T) {
			in := newInbound(t)
			conn, other, sent := addPending(t, in)
			c.preamble.challenge = sent
			key := in.control.keyFrom(0)
			b := c.preamble.encode(key)
			if c.forge {
				b[preambleLen-1] ^= 1
			}
			send(t, other, b[:10])
			conn.ready(0)
			if conn.state != inPending || !conn.isPending() {
				t.Fatalf("state %d after a part of the preamble", conn.state)
			}
			send(t, other, b[10:])
			conn.ready(0)
			if conn.state != inDone || len(in.pending) != 0 {
				t.Errorf("state %d, %d pending", conn.state, len(in.pending))
			}
			if n := in.counters[c.counted].Load(); n != 1 {
				t.Errorf("%q is %d", countNames[c.counted], n)
			}
			var answer [answerLen]byte
			n, err := unix.Read(other, answer[:])
			if !c.answered {
				if n > 0 {
					t.Errorf("%d bytes of an answer", n)
				}
				return
			}
			v, decodeErr := decodeAnswer(&answer, key, &b)
			if n != answerLen || decodeErr != nil || v != verdictOverlay {
				t.Errorf("answer %d of %d bytes: %v, %v", v, n, err, decodeErr)
			}
		})
	}
}

// TestExpire closes connections that waited too long for a preamble, and no others.
func TestExpire(t *testing.T) {
	in := newInbound(t)
	c, _, _ := addPending(t, in)
	if n := in.expirePending(time.Now()); n != 1 || c.state != inPending {
		t.Errorf("state %d of %d connections", c.state, n)
	}
	in.expirePending(time.Now().Add(2 * pendingFor))
	if c.state != inDone || len(in.pending) != 0 {
		t.Errorf("state %d, %d pending", c.state, len(in.pending))
	}
	// The sweep found it pending, and it has been parked since.
	c, _, _ = addPending(t, in)
	c.stopPending()
	c.state = inParked
	c.expire(time.Now().Add(2 * pendingFor))
	if c.state != inParked || sock.Domain(c.fd) != unix.AF_UNIX {
		t.Errorf("state %d, closed", c.state)
	}
	unix.Close(c.fd)
}
