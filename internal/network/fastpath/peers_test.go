package fastpath

import (
	"testing"
	"time"
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
