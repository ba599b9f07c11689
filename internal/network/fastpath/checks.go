package fastpath

// checks keeps pods and other jobs away from the host's sockets. Attack tests
// replace it, to show that every check is needed.
type checks interface {
	// refuses reports whether a call on a switched socket is refused. The call is
	// unix.SYS_LISTEN, unix.SYS_CONNECT, or callDisconnect.
	refuses(call int) bool
	// trusts reports whether a preamble may be used after err of its seal. key is
	// nil if it names no node of the job.
	trusts(err error, key []byte) bool
	// owns reports whether node from owns a pod of node owner.
	owns(from, owner int) bool
	// mayRing reports whether a connection that a pod accepts may come from a bell,
	// while the given number of connections is parked for the pod.
	mayRing(parked int32) bool
	// namespace returns the part of a network's cookie that identifies a bell.
	namespace(network uint64) uint64
}

// callDisconnect is a connect to AF_UNSPEC, which makes a socket as if it were new.
const callDisconnect = -1

// enforced is the checks of every Switch outside of attack tests.
type enforced struct{}

func (enforced) refuses(int) bool                { return true }
func (enforced) trusts(err error, _ []byte) bool { return err == nil }
func (enforced) owns(from, owner int) bool       { return from == owner }
func (enforced) mayRing(parked int32) bool       { return parked > 0 }
func (enforced) namespace(network uint64) uint64 { return network }
