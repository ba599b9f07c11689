package members

import (
	"testing"

	"berth.dev/berth/internal/job/rendezvous"
)

func TestNoConnectionAfterLeaving(t *testing.T) {
	var c headConn
	first, late := &rendezvous.Peer{}, &rendezvous.Peer{}
	if c.HasHead() {
		t.Error("there is a head before any connection")
	}
	if !c.setHead(first) || !c.HasHead() {
		t.Error("the connection is not kept")
	}
	if c.leaveHead() != first {
		t.Error("the connection is not returned for its end")
	}
	if c.setHead(late) || c.head() == late {
		t.Error("a connection is kept after the node has left")
	}
}
