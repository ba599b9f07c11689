package fastpath

import "sync/atomic"

// count is the index of a counter.
type count int

const (
	countConnected count = iota
	countAccepted
	countOutside
	// Left to the overlay.
	countNoPod
	countNotTCP
	countElsewhere
	countPolicy
	countBound
	countInUse
	countDuplicated
	countCrowded
	countUnlisted
	countShort
	countNoPeer
	countPeerLate
	countPeerOverlay
	countInterrupted
	countFull
	// Refused.
	countDisconnect
	countReconnect
	countListen
	countForeign
	countUnseen
	countForged
	// Others.
	countNoListener
	countNotReached
	countCancelled
	countLocal
	countNested
	countShortage
	numCounts
)

var countNames = [numCounts]string{
	countConnected:   "connected",
	countAccepted:    "accepted",
	countOutside:     "connected to the outside",
	countNoPod:       "overlay: the pod is not known yet",
	countNotTCP:      "overlay: not TCP",
	countElsewhere:   "overlay: the address is no other node's pod",
	countPolicy:      "overlay: no policy permits it for certain",
	countBound:       "overlay: bound to another address or an interface",
	countInUse:       "overlay: the socket was used before",
	countDuplicated:  "overlay: the socket has another descriptor",
	countCrowded:     "overlay: the process has too many descriptors",
	countUnlisted:    "overlay: the descriptors of the process cannot be listed",
	countShort:       "overlay: many short connections to the port",
	countNoPeer:      "overlay: no connection to the node",
	countPeerLate:    "overlay: the node did not answer in time",
	countPeerOverlay: "overlay: the node wants it so",
	countInterrupted: "overlay: a signal came first",
	countFull:        "overlay: too many connections",
	countDisconnect:  "refused: disconnect a switched socket",
	countReconnect:   "refused: connect a switched socket again",
	countListen:      "refused: listen on a switched socket",
	countForeign:     "refused: sockets of a 32-bit program",
	countUnseen:      "refused: the process cannot be looked at",
	countForged:      "refused: a connection that proves no node of the job",
	countNoListener:  "connection refused by the pod",
	countNotReached:  "connection refused or lost outside",
	countCancelled:   "cancelled by the caller",
	countLocal:       "accepted from the overlay or the pod itself",
	countNested:      "a seccomp listener of a pod's own, which it cannot have",
	countShortage:    "accepted later: descriptors or memory were short",
}

type counters [numCounts]atomic.Uint64

func (c *counters) add(what count) { c[what].Add(1) }

// nonzero returns the counters that are not zero, by description.
func (c *counters) nonzero() map[string]uint64 {
	all := map[string]uint64{}
	for what := range numCounts {
		if n := c[what].Load(); n != 0 {
			all[countNames[what]] = n
		}
	}
	return all
}
