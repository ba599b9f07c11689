package overlay

// A carrier moves frames between nodes: each is a vnet header and an IP
// packet. There is one per queue. UDP is the only one yet; one over TCP would
// write frames to a stream as they are.
type carrier interface {
	// send takes a frame for a peer, which begins room bytes into buffer. The
	// carrier may use the room, and the buffer until the next flush.
	send(to *peer, buffer []byte)
	// full tells that it must be flushed before it can take more.
	full() bool
	// flush sends what it took, and waits where the network is slower.
	flush() error
	// receive hands what arrives to the gluer until the carrier is stopped
	// (nil).
	receive(into *gluer) error
	// use makes it know other nodes; called by send's goroutine.
	use(t *table)
	// stop makes the other methods return soon. It can be called twice.
	stop()
}

// room is how many bytes a carrier may put before a frame.
const room = atVnet
