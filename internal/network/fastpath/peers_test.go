package fastpath

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/testutil"
)

// One late answer is a lost packet, several in a row are a lost node.
func TestPeerThatIsLateOnceIsStillAsked(t *testing.T) {
	avoided := func(p *peer) bool { return time.Now().Before(p.avoid) }
	p := &peer{}
	for range 3 {
		p.timedOut()
		if avoided(p) {
			t.Fatal("a peer that was late once is left alone")
		}
		p.answered()
	}
	p.timedOut()
	p.timedOut()
	if !avoided(p) {
		t.Error("a peer that was late twice in a row is not left alone")
	}
	p.avoid = time.Time{} // the time is over
	p.timedOut()
	if !avoided(p) {
		t.Error("a peer that still does not answer is not left alone again")
	}
	p.avoid = time.Time{}
	p.answered()
	p.timedOut()
	if avoided(p) {
		t.Error("a peer that answers again is left alone when it is late once")
	}
}

func TestNodeTakesAPlaceAndLeavesIt(t *testing.T) {
	l, client, server := pair(t, labConfig{})
	endpoints := l.hosts[1].endpoints
	for i, now := range []struct {
		endpoints []netip.AddrPort
		network   string
	}{{endpoints, "switched"}, {nil, "overlay"}, {endpoints, "switched"}} {
		if i > 0 {
			l.hosts[0].replace(now.endpoints)
		}
		serving := server.serve("serve", "5000")
		expect(t, client.run("ask", server.at(5000)), client.address, server.address, now.network)
		serving.wait()
	}
}

func TestRetiredPeerKeepsNoConnections(t *testing.T) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ends[0])
	p := &peer{idle: []int{ends[1]}, want: minIdle}
	p.retire()
	// A closed descriptor's number may be in use again, so the other end tells.
	polled := []unix.PollFd{{Fd: int32(ends[0]), Events: unix.POLLIN}}
	testutil.Eventually(t, "the idle connection to a node that has left is closed", func() bool {
		_, err := unix.Poll(polled, 0)
		return err == nil && polled[0].Revents&unix.POLLHUP != 0
	})
	if _, _, err := p.take(); !errors.Is(err, unix.EHOSTUNREACH) {
		t.Errorf("connect to a node that has left: %v", err)
	}
}
