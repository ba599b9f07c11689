package fastpath

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{idle: []int{fd}, want: minIdle}
	p.retire()
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the idle connection to a node that has left is open: %v", err)
	}
	if _, _, err := p.take(); err != unix.EHOSTUNREACH {
		t.Errorf("connect to a node that has left: %v", err)
	}
}
